"""Which blocks of steps are compared: those that nobody disturbed, at one distance of the cores.

A block counts as quiet if all other programs of the machine (and its host, as far as it shows) took less than ``QUIET``
cores meanwhile. Of the quiet ones, those are compared during which the cores were equally far apart (regimes.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from benchmarks import regimes

__all__ = ["QUIET", "Block", "Chosen", "Start", "blocks_of", "choose"]

QUIET = 0.08  # cores
TICKS = 0.02  # seconds by which the system's clock, of 10 ms, may be wrong

Start = List[Any]  # what each rank of one start of a contestant wrote


@dataclass
class Block:
    """Some steps of one start. Seconds per step; lists are by rank."""

    round: int
    seconds: List[List[float]]
    cpu_seconds: List[float]
    waiting_seconds: List[float]  # of DDL, else empty
    others: float  # cores that other programs kept busy
    probes: Tuple[float, ...]  # ns of a cache line's round trip before and after; empty: not probed
    distance: int = 0  # number of the group of regimes.py; -1: it changed meanwhile


@dataclass
class Chosen:
    """All of one model: ``compared`` are blocks of each contestant that may be compared.

    alike: they are quiet and of one distance; else there were none such of everyone, and all are compared.
    enough: so many that no further round is needed. distances: (shortest, longest) ns of each group of the run.
    """

    starts: Mapping[str, List[Start]]
    blocks: Dict[str, List[Block]]
    compared: Dict[str, List[Block]]
    comparable: bool
    enough: bool
    distances: List[Tuple[float, float]]


def blocks_of(number: int, start: Start) -> List[Block]:
    """Return the blocks of one start, which was round ``number``."""
    return [_block(number, of_ranks) for of_ranks in zip(*(report["blocks"] for report in start))]


def _block(number: int, of_ranks: Sequence[Any]) -> Block:
    probes = tuple(of_ranks[0]["probes"])
    return Block(
        number,
        [result["seconds"] for result in of_ranks],
        [result["cpu_seconds"] for result in of_ranks],
        [result["waiting_seconds"] for result in of_ranks if "waiting_seconds" in result],
        _others([result["whole"] for result in of_ranks]),
        probes if all(probes) else (),
    )


def _others(whole: Sequence[Any]) -> float:
    """Return how many cores were busy with anything but the ranks, as far as that is certain."""
    busy: float = max(usage["busy_seconds"] for usage in whole)
    seconds: float = max(usage["seconds"] for usage in whole)
    used: float = sum(usage["cpu_seconds"] for usage in whole)
    return max(0.0, (busy - used - TICKS) / seconds)


def choose(starts: Mapping[str, List[Start]], rounds: int) -> Chosen:
    """Return what to compare of all starts so far; it is enough if everyone has half of the blocks of ``rounds``."""
    blocks = {
        name: [block for number, start in enumerate(of_name) for block in blocks_of(number, start)]
        for name, of_name in starts.items()
    }
    quiet = {name: {0: [block for block in of_name if block.others <= QUIET]} for name, of_name in blocks.items()}
    distances = regimes.assign(quiet)
    compared, comparable = regimes.choose(quiet, [0])[0]
    comparable = comparable and all(compared.values())
    fewest = min(map(len, compared.values()))
    per_start = max((len(blocks_of(0, start)) for of_name in starts.values() for start in of_name), default=0)
    enough = comparable and 2 * fewest >= rounds * per_start
    return Chosen(starts, blocks, compared if comparable else blocks, comparable, enough, distances)
