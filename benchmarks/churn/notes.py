"""What the ranks of a training note (worker.py), as it comes: who is there, how far all are, and whether they agree."""

from __future__ import annotations

import collections
import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Mapping, Sequence, Tuple

from ddl.adapter.sample_cursor import StepRecord, check_committed_once
from ddl.errors import Error

__all__ = ["RankNotes", "StepNote", "end_text"]

PATIENCE = 180.0  #: seconds that anything may take which is waited for
_KEPT = 20_000  # notes
_STEPS_TOGETHER = 3  # after which the ranks of a generation count as settled


@dataclass(frozen=True)
class StepNote:
    """A rank's note of a step that it has finished.

    moment: monotonic seconds. gives: its state to another one. followed: bytes of the state that it got itself before
    it joined, while the others trained.
    """

    moment: float
    pid: int
    rank: int
    size: int
    step: int
    generation: int
    gives: bool = False
    followed: int = 0


def end_text(digest: str, step: int) -> str:
    """Return with what a training has ended, for people."""
    return f"{digest} after step {step}"


class RankNotes:
    """The notes of all ranks of one training. Used by one thread.

    alive: whether the training's processes are there. meanwhile: called again and again while something is awaited.
    pid_of: the id that the process of a note has here; a process in a namespace knows another one.
    """

    def __init__(
        self,
        path: Path,
        alive: Callable[[], bool],
        meanwhile: Callable[[], None],
        pid_of: Callable[[Mapping[str, Any]], int],
    ) -> None:
        self.latest: Dict[int, StepNote] = {}  #: of each process that has ever been there
        self.newest = 0  #: generation that a step was finished in
        self.gaps: Dict[int, float] = {}  #: seconds between the last step before a generation and the first one in it
        self.steps: Dict[bool, List[float]] = {
            False: [],
            True: [],
        }  #: seconds of each, by whether ranks gave their state
        self.joined: Dict[int, int] = {}  #: the generation that each process was in first
        self.ready: Dict[int, float] = {}  #: when each process was ready to train; it is no rank yet
        self.ends: Dict[int, str] = {}  #: digests of the weights with which processes have ended
        self._alive, self._meanwhile, self._pid_of = alive, meanwhile, pid_of
        self._path, self._place = path, 0
        self._recent: Deque[StepNote] = collections.deque(maxlen=_KEPT)
        self._now: Dict[int, StepNote] = {}  # of the processes of the newest generation
        self._first: Dict[int, int] = {0: 0}  # step of each generation
        self._records: Dict[int, StepRecord] = {}
        self._epoch = 0
        self._said: Dict[Tuple[str, int], Tuple[int, Any]] = {}  # of a step: who said first what all should say
        self._undone: List[Tuple[str, int, int]] = []  # what a process has said of a step, and others not
        self._apart: List[StepNote] = []  # steps that a process has finished although the others had, without it

    def read(self) -> None:
        """Take in what was written since."""
        with self._path.open("rb") as file:
            file.seek(self._place)
            text, newline, _ = file.read().rpartition(b"\n")
        self._place += len(text + newline)
        for line in text.split(b"\n") if text else []:
            try:
                note = json.loads(line)
            except ValueError:
                continue  # its process was killed while it wrote
            note["pid"] = self._pid_of(note)
            if "end" in note:
                self.ends[note["pid"]] = end_text(note["digest"], note["end"])
            elif "ready" in note:
                self.ready[note["pid"]] = note["ready"]
            else:
                self._take(note)

    def _take(self, note: Mapping[str, Any]) -> None:
        step = StepNote(**{field.name: note[field.name] for field in dataclasses.fields(StepNote)})
        before = self.latest.get(step.pid)
        if before is None:
            self.joined[step.pid] = step.generation
        elif before.generation < step.generation:
            gap = step.moment - before.moment
            self.gaps[step.generation] = max(gap, self.gaps.get(step.generation, 0.0))
        else:
            self.steps[step.gives or before.gives].append(step.moment - before.moment)
        self.latest[step.pid] = step
        self._recent.append(step)
        if step.generation > self.newest:
            self.newest, self._now, self._first[step.generation] = step.generation, {}, step.step
        if step.generation == self.newest:
            self._now[step.pid] = step
        elif step.step >= min(first for number, first in self._first.items() if number > step.generation):
            self._apart.append(step)
        for plain in note["records"]:
            record = StepRecord.from_plain(plain)
            self._compare("samples", step, record)
            self._records[record.step] = record
            self._epoch = record.epoch
        if note["digest"] is not None:
            self._compare("weights", step, note["digest"])

    def _compare(self, name: str, note: StepNote, value: Any) -> None:
        """Keep what is said last: a step that only a process has finished which then dies is done again by the rest."""
        earlier = self._said.get((name, note.step))
        if earlier is None or earlier[1] != value:
            self._said[name, note.step] = (note.pid, value)
            if earlier is not None:
                self._undone.append((name, earlier[0], note.step))

    # --- waiting ---

    def wait(self, done: Callable[[], bool], what: str, *, period: float = 0.005, patience: float = PATIENCE) -> None:
        """Return when ``done`` is true. ``Error`` says ``what`` has not come."""
        deadline = time.monotonic() + patience
        while True:
            self.read()
            if done():
                return
            if not self._alive() or time.monotonic() > deadline:
                last = sorted(self.latest.values(), key=lambda note: note.moment)[-8:]
                raise Error(f"{what}: not within {patience:g} s; the last notes: {last}; alive: {self._alive()}")
            self._meanwhile()
            time.sleep(period)

    def wait_until(self, moment: float) -> None:
        """Return at a moment, in monotonic seconds."""
        self.wait(lambda: time.monotonic() > moment, "that moment")

    @property
    def now(self) -> List[StepNote]:
        """The last notes of the processes of the newest generation, as far as they have finished a step in it."""
        return list(self._now.values())

    @property
    def complete(self) -> bool:
        """Whether all processes of the newest generation have finished a step in it."""
        return bool(self._now) and all(note.size == len(self._now) for note in self._now.values())

    def members(self) -> Dict[int, int]:
        """Return the processes of the newest generation by rank; {} before all of them have finished a few steps."""
        notes = self._now.values()
        if not self.complete or min(note.step for note in notes) < self._first[self.newest] + _STEPS_TOGETHER:
            return {}
        return {note.rank: note.pid for note in notes}

    def wait_for_epoch(self, number: int, patience: float) -> None:
        """Return once an epoch has begun; the first is 0."""
        self.wait(lambda: self._epoch >= number, f"epoch {number}", patience=patience)

    def longest_gap(self, begin: float, end: float) -> float:
        """Return the longest time between two steps of any rank, as far as it is within two moments."""
        by_pid: Dict[int, List[float]] = {}
        for note in self._recent:
            by_pid.setdefault(note.pid, []).append(note.moment)
        pairs = (pair for moments in by_pid.values() for pair in zip(moments, moments[1:]))
        return max(later - sooner for sooner, later in pairs if later > begin and sooner < end)

    def steps_below(self, size: int, begin: float, end: float) -> int:
        """Return how many steps fewer than ``size`` ranks have finished between two moments."""
        return len({note.step for note in self._recent if begin < note.moment < end and note.size < size})

    def wait_for_change(self, moment: float, generation: int, pids: Sequence[int]) -> float:
        """Return how long after ``moment`` all of ``pids`` have finished a step of a generation after that."""
        first: Dict[int, float] = {}

        def done() -> bool:
            for note in reversed(self._recent):
                if note.moment < moment - 1.0:
                    break  # they are in the order of time, but for very little
                if note.generation > generation and note.moment > moment:
                    first[note.pid] = note.moment
            return all(pid in first for pid in pids)

        self.wait(done, f"a step of {list(pids)} after generation {generation}", period=0.002)
        return max(first[pid] for pid in pids) - moment

    # --- the end ---

    def check(self, lost: Sequence[int]) -> List[str]:
        """Return what is wrong, for people; [] if all is well. ``lost``: the processes that were not to live on."""
        problems = []
        if len(set(self.ends.values())) != 1:
            problems.append(f"ranks have ended with different weights: {self.ends}")
        for name, pid, step in self._undone:
            if pid not in lost or self.latest[pid].step != step:
                problems.append(f"ranks do not agree on {name} of step {step}, which process {pid} had first")
        for note in self._apart:
            where = f"step {note.step} in generation {note.generation}"
            problems.append(f"process {note.pid} has finished {where}, which the others have done without it")
        missing = set(range(max(self._records, default=0))) - self._records.keys()
        if missing:
            problems.append(f"nobody has noted steps {sorted(missing)[:10]}")
        return problems

    @property
    def records(self) -> List[StepRecord]:
        """Which samples each step has used, in the order of steps."""
        return [self._records[step] for step in sorted(self._records)]

    def epochs(self, samples: int) -> int:
        """Return in how many epochs all samples were used exactly once. Raises ``InvalidArgument`` for any other."""
        return check_committed_once(samples, self.records)
