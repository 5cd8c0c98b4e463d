"""Healthy jobs accuse nobody: random histories, dumped at any moment, on hosts whose clocks have nothing in common."""

from __future__ import annotations

import random
from typing import Dict, List, Sequence, Tuple

import pytest
from blame.fabricated import IN_DDL, LOADING, call, communicator, dump

from ddl.blame.judge import blame
from ddl.blame.report import report
from ddl.records.dump import RankDump
from ddl.records.layout import LaneRecord, RecordedOperation

HISTORIES = 1000
PARTS = 4  # tests, so that each is quick
OPERATIONS = 40
LONGEST_PAUSE = 4.0  # seconds, in which a rank writes a checkpoint, say; less than the default of --patience


class RandomJob:
    """What ranks call, and when. ``program``: the communicator of each operation; -1: a message around a ring."""

    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.size = draw.choice((2, 3, 4, 8))
        world = tuple(range(self.size))
        self.groups: List[Tuple[int, ...]] = [world, world[::2], world[1::2]]
        self.program = [draw.choice((0, 0, 0, 0, 1, 2, -1)) for _ in range(OPERATIONS)]
        self.hosts = draw.randint(1, self.size)
        self.clocks = [(draw.uniform(0, 1e6), 1e9 + draw.uniform(-0.5, 0.5)) for _ in range(self.hosts)]
        self.pace = draw.choice((0.001, 0.01, 0.1))
        self.pauses = draw.choice((0.0, 0.02))
        self.now = [0.0] * self.size
        #: Of each rank and group (3: messages): begin, end, and the rank that came last.
        self.calls: List[List[List[Tuple[float, float, int]]]] = [[[], [], [], []] for _ in world]
        for group in self.program:
            self._message() if group < 0 else self._collective(group)

    def _compute(self, rank: int) -> float:
        pause = self.random.uniform(0, LONGEST_PAUSE) if self.random.random() < self.pauses else 0.0
        return self.now[rank] + self.random.expovariate(1 / self.pace) + pause

    def _collective(self, group: int) -> None:
        members = self.groups[group]
        came = {rank: self._compute(rank) for rank in members}
        last = max(members, key=lambda rank: came[rank])
        for rank in members:
            self.now[rank] = came[last] + self.random.uniform(1e-5, self.pace / 2)
            self.calls[rank][group].append((came[rank], self.now[rank], members.index(last)))

    def _message(self) -> None:
        """Each rank sends to the next one and receives from the one before, as asynchronous calls."""
        came = [self._compute(rank) for rank in range(self.size)]
        for rank in range(self.size):
            for other in ((rank + 1) % self.size, (rank - 1) % self.size):
                end = max(came[rank], came[other]) + 1e-4
                self.calls[rank][3].append((came[rank], end, other))
                self.now[rank] = max(self.now[rank], end)

    def dumps(self, moment: float) -> List[RankDump]:
        """Dump each host around ``moment``, and its ranks one after the other."""
        seen = [moment + self.random.uniform(0, max(self.now) / 3) for _ in range(self.hosts)]
        return [self._dump(rank, seen[rank % self.hosts] + rank * 1e-3) for rank in range(self.size)]

    def _dump(self, rank: int, moment: float) -> RankDump:
        monotonic, wall = self.clocks[rank % self.hosts]
        records = []
        for group, members in enumerate(self.groups):
            if rank not in members:
                continue
            own = self.calls[rank]
            collectives = [self._call(at, n, moment, monotonic) for n, at in enumerate(own[group], 1)]
            messages = [self._message_call(at, n, moment, monotonic) for n, at in enumerate(own[3], 1)]
            known = [each for each in (*collectives, *(messages if group == 0 else ())) if each is not None]
            waited = sum(end - begin for begin, end, _ in own[group] if end < moment)
            lanes = {"lanes": {"small": LaneRecord(len(known), waited, waited, None)}}
            records.append(communicator(members.index(rank), members, known, number=group, **lanes))
        in_call = any(begin <= moment < end for calls in self.calls[rank] for begin, end, _ in calls)
        return dump(
            rank,
            records,
            size=self.size,
            host=f"h{rank % self.hosts}",
            state=self.random.choice(("runs", "sleeps", "sleeps")),
            view={"cpu_seconds": moment, "run_delay": 0.0},
            taken=monotonic + moment,
            clock=(monotonic, wall),
            stacks=self.random.choice(("", IN_DDL if in_call else LOADING)),
        )

    def _call(
        self, at: Tuple[float, float, int], number: int, moment: float, clock: float, **changes: object
    ) -> object:
        begin, end, last = at
        if begin > moment:
            return None
        slept = last if end - begin > 1e-3 else None
        if end > moment:
            return call(number, "begun", begun=clock + begin, awaited=slept, **changes)
        times: Dict[str, object] = {"begun": clock + begin, "ended": clock + end} if slept is not None else {}
        return call(number, awaited=slept, **times, **changes)

    def _message_call(self, at: Tuple[float, float, int], number: int, moment: float, clock: float) -> object:
        verb = "send" if number % 2 else "recv"
        return self._call(at, number, moment, clock, collective=verb, root=at[2], lane="messages")


def calls_of(dumps: Sequence[RankDump]) -> List[RecordedOperation]:
    return [
        each
        for rank in dumps
        for record in rank.record.communicators
        for each in (*record.collectives, *record.messages)
    ]


@pytest.mark.few(3)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_healthy_histories_accuse_nobody(part: int) -> None:
    under_way = impatient = 0
    for seed in range(part, HISTORIES, PARTS):
        history = RandomJob(seed)
        dumps = history.dumps(history.random.uniform(0, 0.7 * max(history.now)))
        under_way += any(not each.over for each in calls_of(dumps))
        findings = blame(dumps)
        assert not findings, (seed, findings)
        impatient += bool(blame(dumps, patience=0.0))
    assert under_way > HISTORIES / PARTS / 2  # most were caught in the middle of an operation
    assert impatient > HISTORIES / PARTS / 20  # the waits are there, and only the limit tells them from a hang


def test_what_is_said_of_a_healthy_job() -> None:
    history = RandomJob(1)
    history.program = []
    dumps = history.dumps(1e3)
    last = max(record.submitted for rank in dumps for record in rank.record.communicators if record.number == 0)
    said = f"no rank is to blame: all {history.size} ranks do operation #{last} or compute"
    assert report(dumps, None, []) == [said]
    missing = report(dumps[1:], None, [])
    assert missing[0] == f"{history.size} ranks; there is no dump of rank 0"
    assert f"the {history.size - 1} ranks with a dump do" in missing[1]
