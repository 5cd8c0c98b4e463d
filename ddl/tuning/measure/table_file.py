"""The files with tables of ``ddl tune``, and how all ranks of a job get the same table.

Only rank 0 reads a file. It sends the others a ``TableOffer`` with the contents, in its last message of the
rendezvous. So hosts may have different files, or none, and all ranks still choose the same. An error in a file that the
user did not name does not stop the job: rank 0 warns, and DDL uses the built-in table.
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
    """What rank 0 sends to all ranks: a file's contents, or why there are none, and for how long to measure instead."""

    path: str = ""
    text: str = ""
    problem: str = ""
    named: bool = False  #: whether DDL_TUNED names the file: then a problem is an error
    #: For how long to measure if no table suits. 0: not at all, also if DDL_ALGORITHM or DDL_DETERMINISTIC is set.
    seconds: float = 0.0


def place(cluster: TunedCluster) -> Path:
    """Return the path of a cluster's table for this user. Raises ``ConfigError`` without a home directory."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        directory = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    except RuntimeError as error:
        raise ConfigError(f"there is no directory for a table: {error}; set HOME or XDG_CONFIG_HOME") from error
    return directory / "ddl" / f"tuned-{cluster.fingerprint}.toml"


def offer(settings: Settings, cluster: TunedCluster) -> TableOffer:
    """Read, on rank 0, the table that the settings choose. Problems are returned: all ranks must get them."""
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
        # A user who names a file says that these hosts are like the measured ones, but not that their racks are.
        table = Table.parse(text)
        problem = table.cluster.difference(cluster, names=not named or table.racks is not None)
    except ConfigError as error:
        problem = str(error)
    return TableOffer(path, "" if problem else text, problem, named, seconds)


def take(offered: TableOffer, topology: Topology, *, warn: bool) -> Optional[Table]:
    """Return the offered table if it suits this job; otherwise return None, and log a warning if ``warn``.

    All ranks have the same offer and topology, so all return the same. Raises ``ConfigError`` on all ranks if the table
    does not suit and DDL_TUNED names its file.
    """
    if not offered.path:
        return None
    problem = offered.problem
    if not problem:
        table = Table.parse(offered.text)  # rank 0 has parsed it without an error
        problem = table.misfit(topology)
        if not problem:
            return table
    if offered.named:
        raise ConfigError(f"DDL_TUNED={offered.path}: {problem}; run 'ddl tune --output' again, or unset DDL_TUNED")
    if warn:
        log.warning(
            "%s is not used, DDL's built-in table is: %s; run 'ddl tune' again, or remove the file",
            offered.path,
            problem,
        )
    return None


def write(table: Table, path: Path) -> None:
    """Write a table in one atomic step, so that nobody reads a part of it. Raises ``OSError``."""
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
