"""Tables of pauses beside their limits, and whether memory and descriptors stayed as they were."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Sequence, Tuple

from benchmarks.churn.trainings import ChurnTraining
from benchmarks.churn.usage import UsageHistory, tenths
from ddl.errors import Error, InvalidArgument
from ddl.tools.bench.figures import quantile

__all__ = ["ChurnOutcome", "PauseLimit", "compare_followed", "compare_steps", "conclude", "failures_noted"]

_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("most", 1.0))
_MORE_DESCRIPTORS = 4  # that may be open at a moment
_MORE_MEMORY = 1.1
_SLOWER = 1.1  # steps, while a process that joins gets the state
_FEWEST = 10  # lines of usage by which growth is judged
_WELL = "limits were kept, all weights were equal, and each sample was used exactly once in each finished epoch"


@dataclass(frozen=True)
class PauseLimit:
    """Seconds that pauses may take: the median, and the slowest of a hundred. 0: no limit."""

    p50: float = 0.0
    p99: float = 0.0

    def __str__(self) -> str:
        parts = [f"{name} {1e3 * limit:g} ms" for name, limit in (("p50", self.p50), ("p99", self.p99)) if limit]
        return ", ".join(parts) or "none"


JOIN = PauseLimit(p99=0.55)  # a step of 50 ms, and half a second


@dataclass
class ChurnOutcome:
    """What a scenario has shown."""

    title: str
    pauses: Dict[str, List[float]] = field(default_factory=dict)  #: seconds, by what had happened
    limits: Dict[str, PauseLimit] = field(default_factory=dict)  #: of these
    trainings: int = 0
    epochs: int = 0  #: of all trainings, in which each sample was used exactly once
    ends: int = 0  #: ranks that were there at the end, and had equal weights
    notes: List[str] = field(default_factory=list)  #: for people: what else was seen
    skipped: str = ""  #: for people: why nothing was done
    problems: List[str] = field(default_factory=list)  #: for people: what is wrong

    def add(self, what: str, seconds: float, limit: PauseLimit) -> None:
        """Note a pause, and how long such pauses may be."""
        self.pauses.setdefault(what, []).append(seconds)
        self.limits[what] = limit

    def compare_with_limits(self) -> None:
        """Add the limits that were missed to ``problems``."""
        for what, seconds in self.pauses.items():
            limit, ordered = self.limits[what], sorted(seconds)
            for name, q, most in (("p50", 0.5, limit.p50), ("p99", 0.99, limit.p99)):
                value = quantile(ordered, q)
                if most and value > most:
                    self.problems.append(f"{what}: {name} is {1e3 * value:.0f} ms, more than {1e3 * most:g} ms")

    def compare_usage(self, usage: UsageHistory) -> None:
        """Note what was used in the first and in the last tenth of the time, and add what has grown to ``problems``."""
        lines, old = usage.usual, usage.of_oldest
        if len(old) < _FEWEST:
            self.notes.append(
                f"growth was not judged: that takes {_FEWEST} looks at the oldest rank, and there were {len(old)}"
            )
            return
        ranks = [line["ranks_kilobytes"] / line["ranks"] for line in lines]
        rows: List[Tuple[str, Sequence[float], Sequence[float]]] = [
            ("a rank, on average", ranks, []),
            ("the oldest rank", *_columns(old, "oldest")),
            ("ddlrun and its agent", *_columns([line for line in lines if line["launcher_kilobytes"]], "launcher")),
        ]
        self.notes.append(
            f"{old[-1]['seconds'] - old[0]['seconds']} s is how long the oldest rank was seen; first and last tenth:"
        )
        for who, kilobytes, descriptors in rows:
            parts = []
            if kilobytes:
                first, last = tenths(kilobytes)
                parts.append(f"{first / 1024:.1f} and {last / 1024:.1f} MiB")
                if last > _MORE_MEMORY * first:
                    self.problems.append(f"{who}: memory has grown from {first / 1024:.1f} to {last / 1024:.1f} MiB")
            if descriptors:
                first, last = tenths(descriptors)
                parts.append(f"{first:.0f} and {last:.0f} descriptors")
                if last > first + _MORE_DESCRIPTORS:
                    self.problems.append(f"{who}: descriptors have grown from {first:.0f} to {last:.0f}")
            if parts:
                self.notes.append(f"{who + ':':22}{', '.join(parts)}")

    def text(self) -> str:
        """Return the table and the notes."""
        if self.skipped:
            return f"{self.title}\nSKIPPED: {self.skipped}"
        wrong = [f"WRONG: {problem}" for problem in self.problems]
        if not self.pauses:
            return "\n".join([self.title, *self.notes, *(wrong or ["the limit was kept"])])
        width = max([len("pause when"), *map(len, self.pauses)])
        head = "".join(f"  {name:>8}" for name, _ in _QUANTILES)
        lines = [self.title, f"{'pause when':{width}}  times{head}  limit"]
        for what, seconds in self.pauses.items():
            ordered = sorted(seconds)
            cells = "".join(f"  {1e3 * quantile(ordered, q):>5.0f} ms" for _, q in _QUANTILES)
            lines.append(f"{what:{width}}  {len(seconds):>5}{cells}  {self.limits[what]}")
        if self.ends:
            lines.append(f"trainings: {self.trainings}; finished epochs: {self.epochs}; ranks at the end: {self.ends}")
        lines += self.notes
        lines += wrong or [_WELL if self.ends else "the limit was kept"]
        return "\n".join(lines)


@contextlib.contextmanager
def failures_noted(outcome: ChurnOutcome) -> Iterator[None]:
    """Add it to ``outcome`` if a training does not go on, so that what was seen before is shown, too."""
    try:
        yield
    except (Error, subprocess.TimeoutExpired) as error:
        outcome.problems.append(f"a training did not go on: {error}")


def conclude(training: ChurnTraining, outcome: ChurnOutcome, *, usage: bool = False) -> None:
    """End a training, and add to ``outcome`` what it has shown: joins, samples, weights, and with ``usage`` growth."""
    outcome.problems += training.end()
    outcome.trainings += 1
    notes = training.notes
    for generation in sorted(set(notes.joined.values()) & notes.gaps.keys()):
        outcome.add("processes join", notes.gaps[generation], JOIN)
    try:
        epochs = notes.epochs(training.network.samples)
        if epochs == 0:
            outcome.problems.append("no epoch was finished, so nothing is known of its samples: take fewer (--samples)")
        outcome.epochs += epochs
    except InvalidArgument as error:
        outcome.problems.append(str(error))
    outcome.ends += len(notes.ends)
    if usage:
        outcome.compare_usage(training.usage)


def compare_steps(training: ChurnTraining, outcome: ChurnOutcome) -> None:
    """Add to ``outcome`` how long steps took while a process that joined got the state."""
    usual, giving = training.notes.steps[False], training.notes.steps[True]
    if not giving:
        outcome.problems.append("no process that joined was given the state while the others trained")
        return
    ratios = [statistics.mean(giving) / statistics.mean(usual), statistics.median(giving) / statistics.median(usual)]
    outcome.notes.append(
        f"{len(giving)} steps while a process got the state took {1e3 * statistics.mean(giving):.1f} ms on average, "
        f"{ratios[0]:.2f} times the others; the median {ratios[1]:.2f} times; at most {1e3 * max(giving):.0f} ms"
    )
    for what, ratio in zip(("on average", "as their median"), ratios):
        if ratio > _SLOWER:
            outcome.problems.append(
                f"while a process gets the state, steps take {ratio:.2f} times as long {what}, more than {_SLOWER:g}"
            )


def compare_followed(training: ChurnTraining, outcome: ChurnOutcome) -> None:
    """Add to ``outcome`` how much of a large state each process got while the others trained, before it joined."""
    notes, least = training.notes, training.network.frozen
    followed = {pid: notes.latest[pid].followed for pid, generation in notes.joined.items() if generation > 0}
    outcome.notes.append(
        f"processes that joined: {len(followed)}, each with {min(followed.values(), default=0) / 1e6:.0f} MB or more "
        "that it got while the others trained"
    )
    for pid, got in followed.items():
        if got < least:
            outcome.problems.append(f"process {pid} got {got} bytes while the others trained, fewer than {least}")


def _columns(lines: Sequence[Dict[str, int]], who: str) -> Tuple[List[float], List[float]]:
    """Return kilobytes and descriptors of ``who``."""
    return [float(line[f"{who}_kilobytes"]) for line in lines], [float(line[f"{who}_descriptors"]) for line in lines]
