"""Where tables of ``ddl tune`` lie, and how all ranks of a job come to the same one.

Only rank 0 looks for a file: it tells the others, in its last word of the rendezvous, what stands there: a
``TableOffer``. So hosts may have different files, or none, and all ranks still choose alike. What is wrong with a file
that nobody named is no reason not to train: rank 0 warns, and the built-in table serves.
"""

from __future__ import annotations

import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ddl.bootstrap.environ import Settings
from ddl.errors import ConfigError
from ddl.topology import Topology
from ddl.tuning.table import Table, TunedCluster

__all__ = ["TableOffer", "offer", "place", "take", "write"]

_OFF = "off"
_MOST = 48 << 10  #: bytes of a file; a value in the store may have 64 KiB
log = logging.getLogger("ddl")


@dataclass(frozen=True)
class TableOffer:
    """What rank 0 tells all ranks: a file's contents, or why it has none, and for how long to measure instead."""

    path: str = ""
    text: str = ""
    problem: str = ""
    named: bool = False  #: by DDL_TUNED: then a problem is an error
    #: To measure if no table suits. 0: do not, as where DDL_ALGORITHM or DDL_DETERMINISTIC leaves no choice.
    seconds: float = 0.0


def place(cluster: TunedCluster) -> Path:
    """Return the path of a cluster's table for this user. Raises ``ConfigError`` if there is no home directory."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        directory = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    except RuntimeError as error:
        raise ConfigError(f"no directory for a table: {error}; set HOME or XDG_CONFIG_HOME") from error
    return directory / "ddl" / f"tuned-{cluster.fingerprint}.toml"


def offer(settings: Settings, cluster: TunedCluster) -> TableOffer:
    """Look for the table that the settings mean, as rank 0; nothing raises, so that all ranks hear what is wrong."""
    if settings.tuned == _OFF:
        return TableOffer()
    choice = not (settings.algorithm or settings.deterministic)
    named, seconds = bool(settings.tuned), settings.tune_seconds if choice else 0.0
    try:
        path = settings.tuned or str(place(cluster))
    except ConfigError:
        return TableOffer(seconds=seconds)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST + 1)
    except FileNotFoundError as error:
        return (
            TableOffer(path, problem=f"it cannot be read: {error}", named=True)
            if named
            else TableOffer(seconds=seconds)
        )
    except (OSError, UnicodeDecodeError) as error:
        return TableOffer(path, problem=f"it cannot be read: {error}", named=named, seconds=seconds)
    if len(text.encode()) > _MOST:
        return TableOffer(path, problem=f"it is longer than {_MOST} bytes", named=named, seconds=seconds)
    try:
        # Whoever names a file says that these hosts are like those; but not that they stand in the same racks.
        table = Table.parse(text)
        problem = table.cluster.difference(cluster, names=not named or table.racks is not None)
    except ConfigError as error:
        problem = str(error)
    return TableOffer(path, "" if problem else text, problem, named, seconds)


def take(offered: TableOffer, topology: Topology, *, warn: bool) -> Optional[Table]:
    """Return the table that was offered if it holds for this job, else None and, from the rank that may, a warning.

    All ranks have the same offer and topology, so all return the same. Raises ``ConfigError`` on all ranks if DDL_TUNED
    named the file.
    """
    if not offered.path:
        return None
    problem = offered.problem
    if not problem:
        table = Table.parse(offered.text)  # as rank 0 could
        problem = table.misfit(topology)
        if not problem:
            return table
    if offered.named:
        raise ConfigError(f"DDL_TUNED={offered.path}: {problem}; run 'ddl tune --output' again, or unset DDL_TUNED")
    if warn:
        log.warning(
            "%s is not used, but DDL's built-in table: %s; run 'ddl tune' again, or remove the file",
            offered.path,
            problem,
        )
    return None


def write(table: Table, path: Path) -> None:
    """Write a table so that nobody reads half of it. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(table.text())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
