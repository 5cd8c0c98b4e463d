"""Turns options about hosts, slots, racks and modes into a placement and the dimensions of the job. No I/O.

``--mode p:4x8x2``, ``--accelerators``, ``--nodes``, ``--racks``, ``--aisles`` are IBM's spellings: 4 ranks on each
host, 8 hosts in a rack, 2 racks. The letter before the colon chooses among algorithms: ``r`` forces a plain ring, ``p``
measures at the start unless that was done before on these hosts (docs/tune.md). ``b`` and ``n``, which chose among
IBM's algorithms, mean DDL's own choice, as no letter does. ``m`` and ``c`` mean nothing here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod
from typing import Dict, Optional, Sequence, Tuple

from ddl.errors import ConfigError
from ddl.launch.ask.hosts import Host
from ddl.launch.ask.placement import UNPLACED, Placement, place

__all__ = ["JobLayout", "arrange"]

#: By letter: variables for the ranks. What ``p`` measures takes some seconds of the first start.
_LETTERS: Dict[str, Dict[str, str]] = {"r": {"DDL_ALGORITHM": "ring"}, "p": {"DDL_TUNE_SECONDS": "4"}, "b": {}, "n": {}}


@dataclass(frozen=True)
class JobLayout:
    """How many ranks there are, where they run, and what they are told of it."""

    size: int
    placement: Placement
    environ: Dict[str, str] = field(default_factory=dict)


def arrange(
    hosts: Sequence[Host],
    by_rankfile: Optional[Placement],
    *,
    num_proc: Optional[int] = None,
    accelerators: Optional[int] = None,
    nodes: Optional[int] = None,
    racks: Optional[int] = None,
    aisles: Optional[int] = None,
    mode: str = "",
) -> JobLayout:
    """Return the layout of the job; ``by_rankfile``: if there is one. ConfigError names what does not fit."""
    environ, sizes = _mode(mode)
    placement = by_rankfile or UNPLACED
    if by_rankfile is None and hosts:
        if accelerators is not None:
            hosts = [Host(host.name, accelerators) for host in hosts]
        placement = place(hosts, num_proc)
    elif by_rankfile is not None and num_proc not in (None, by_rankfile.size):
        raise ConfigError(f"-np {num_proc}, but the rankfile places {by_rankfile.size} ranks; leave out -np")
    size = placement.size if placement.hosts else num_proc or accelerators
    if size is None:
        raise ConfigError("the number of ranks is missing: -np N")
    if nodes is not None or racks is not None or aisles is not None:
        if sizes:
            raise ConfigError("--mode says the dimensions, and so do --nodes, --racks and --aisles; give one of them")
        sizes = _dimensions(placement, nodes, racks, aisles)
    if sizes:
        if prod(sizes) != size:
            shown = "x".join(map(str, sizes))
            raise ConfigError(
                f"the dimensions {shown} are {prod(sizes)} ranks, but the job has {size}; mend one of them"
            )
        environ["DDL_DIMENSIONS"] = "x".join(map(str, sizes))
    return JobLayout(size, placement, environ)


def _mode(text: str) -> Tuple[Dict[str, str], Tuple[int, ...]]:
    """Return variables and sizes of ``p:4x2``, ``r`` or ``4x2``."""
    if not text:
        return {}, ()
    match = re.fullmatch(r"(?:([a-z])(?::|$))?((?:[0-9]{1,9}(?:x[0-9]{1,9})*)?)", text)
    if match is None or (match[1] is None and not match[2]):
        raise ConfigError(f"--mode {text}: write LETTER:SIZExSIZE…, innermost first, as p:4x8x2")
    letter, sizes = match[1] or "b", tuple(int(size) for size in match[2].split("x") if size)
    if letter not in _LETTERS:
        known = ", ".join(_LETTERS)
        raise ConfigError(f"--mode {text}: nothing here answers to {letter!r}; choose one of {known}, or leave it out")
    if 0 in sizes:
        raise ConfigError(f"--mode {text}: a size of 0")
    return dict(_LETTERS[letter]), sizes


def _dimensions(
    placement: Placement, nodes: Optional[int], racks: Optional[int], aisles: Optional[int]
) -> Tuple[int, ...]:
    count = len(placement.hosts) or 1
    slots = {len(ranks) for ranks in placement.ranks}
    if len(slots) > 1:
        raise ConfigError(f"--nodes, --racks and --aisles need as many ranks on every host, not {placement}")
    outer = (racks or 1) * (aisles or 1)
    inner = nodes if nodes is not None else max(1, count // outer)
    if inner * outer != count:
        raise ConfigError(
            f"--nodes {inner} x --racks {racks or 1} x --aisles {aisles or 1} are {inner * outer} hosts, but the job "
            f"has {count}; nodes are counted per rack, racks per aisle"
        )
    sizes = (next(iter(slots), 1), inner, racks or 1, aisles or 1)
    return sizes[: max((at + 1 for at, size in enumerate(sizes) if size > 1), default=1)]
