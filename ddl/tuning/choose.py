"""Turns measured times into lines. Pure: all ranks have the same numbers, so all ranks choose the same.

The default stays unless another candidate is faster by more than a margin, twice: the best of a first series of rounds
must also win a second series, whose times did not make it the best. Between two measured sizes, another candidate is
used only if it was chosen at both.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import List, Mapping, Sequence, Tuple

from ddl.tuning.select import ANY, Line, Lines

__all__ = ["MARGIN", "best", "better_half", "choose", "lines_of"]

MARGIN = 0.05  #: by which part of its time another candidate must be faster than the default
#: Seconds of each round, by candidate; all candidates ran in every round.
Rounds = Mapping[int, Sequence[float]]


def best(rounds: Rounds, default: int) -> int:
    """Return the candidate with the least median if it is faster than the default by more than the margin.

    Otherwise, return the default. If medians are equal, the lower number wins.
    """
    medians = {candidate: statistics.median(seconds) for candidate, seconds in rounds.items()}
    least = min(medians, key=lambda candidate: (medians[candidate], candidate))
    return least if medians[least] * (1 + MARGIN) < medians[default] else default


def choose(first: Rounds, second: Rounds, default: int) -> int:
    """Return the choice after both series: the best of the first, if it is also the best of the second.

    It must also beat the default in three of four rounds of the second: where rounds differ much, a median may be luck.
    """
    winner = best(first, default)
    if winner == default or best(second, default) != winner:
        return default
    won = sum(seconds < other for seconds, other in zip(second[winner], second[default]))
    return winner if 4 * won >= 3 * len(second[default]) else default


def better_half(rounds: Rounds, default: int) -> Tuple[int, ...]:
    """Return the better half of the candidates (at least one), and always the default, in ascending order.

    This is one step of successive halving (Karnin et al., 2013): slow candidates take little time.
    """
    order = sorted(rounds, key=lambda candidate: (statistics.median(rounds[candidate]), candidate))
    return tuple(sorted({default, *order[: (len(order) + 1) // 2]}))


def lines_of(chosen: Mapping[int, Line], default: Lines) -> Lines:
    """Return the lines for all sizes. ``chosen`` is the best line at each measured size, in bytes.

    A line that was chosen at two neighbouring sizes also serves the sizes between them. The default serves all other
    sizes, and those below and beyond the measured ones.
    """
    lines: List[Line] = []
    beyond = -1  # all sizes up to this one have a line
    for first, last in _runs(sorted(chosen), chosen):
        _append_default(lines, default, beyond, first - 1)
        _append(lines, replace(chosen[first], max_bytes=last))
        beyond = last
    _append_default(lines, default, beyond, ANY)
    return tuple(lines)


def _runs(sizes: Sequence[int], chosen: Mapping[int, Line]) -> List[Tuple[int, int]]:
    """Return (first, last) of the longest runs of neighbouring sizes with the same choice."""
    runs: List[Tuple[int, int]] = []
    for size in sizes:
        if runs and replace(chosen[runs[-1][1]], max_bytes=0) == replace(chosen[size], max_bytes=0):
            runs[-1] = (runs[-1][0], size)
        else:
            runs.append((size, size))
    return runs


def _append_default(lines: List[Line], default: Lines, beyond: int, until: int) -> None:
    """Append the default's lines for sizes above ``beyond`` up to ``until``."""
    below = beyond
    for line in default:
        last = min(line.max_bytes, until)
        if last > below:
            _append(lines, replace(line, max_bytes=last))
            below = last


def _append(lines: List[Line], line: Line) -> None:
    """Append a line, or let the last one serve more sizes if it is the same."""
    if lines and replace(lines[-1], max_bytes=line.max_bytes) == line:
        lines[-1] = line
    else:
        lines.append(line)
