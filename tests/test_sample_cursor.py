"""Each sample of an epoch is committed exactly once, whatever ranks come, go, and die within a step.

The model is a sorted list of all positions that are not committed: a step deals the first of them. The cursor must do
the same with its few ranges, and keep to the bounds that its documentation states.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any, List, Tuple

import numpy as np
import pytest
from docstrings import run_examples
from hypothesis import given
from hypothesis import strategies as st

from ddl import InvalidArgument, InvalidState
from ddl.adapter.sample_cursor import PerRank, SampleCursor, StepRecord, check_committed_once, replay

#: How a step may be dealt: its ranks, what it asks of them, and which of them it loses.
Dealing = Tuple[int, PerRank, List[int]]


@st.composite
def dealings(draw: st.DrawFn) -> Dealing:
    size = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["constant per rank", "constant in total", "any"]))
    per_rank: PerRank
    if kind == "constant per rank":
        per_rank = draw(st.integers(1, 9))
    elif kind == "constant in total":
        per_rank = [24 // size + (rank < 24 % size) for rank in range(size)]
    else:
        per_rank = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any))
    lost = draw(st.lists(st.integers(0, size - 1), max_size=size - 1, unique=True))
    return size, per_rank, lost


def again_from_json(plain: Any) -> Any:
    return json.loads(json.dumps(plain))


class Epoch:
    """A cursor, the model beside it, and the log of what was done."""

    def __init__(self, length: int) -> None:
        self.cursor, self.left = SampleCursor(length), list(range(length))
        self.log: List[StepRecord] = []
        self.dealt: List[List[Tuple[List[int], int]]] = []
        self.lost_since_no_hole = 0
        self.largest_step = 0

    def take(self, size: int, per_rank: PerRank, lost: List[int]) -> None:
        """Deal a step and commit it, and compare all of it with the model."""
        batches = [per_rank] * size if isinstance(per_rank, int) else list(per_rank)
        shares = [self.cursor.deal(rank, size, per_rank) for rank in range(size)]
        assert [len(positions) for positions, _ in shares] == batches
        real = [positions[: len(positions) - padding].tolist() for positions, padding in shares]
        padding = sum(count for _, count in shares)
        assert [i for share in real for i in share] == self.left[: sum(batches)]
        assert padding == max(0, sum(batches) - len(self.left))
        used = {i for rank, share in enumerate(real) if rank not in lost for i in share}
        self.left = [i for i in self.left if i not in used]
        record = self.cursor.commit(size, per_rank, lost=lost, generation=7, members=range(size))
        assert {i for first, end in record.ranges for i in range(first, end)} == used
        assert (record.generation, record.members) == (7, tuple(range(size)))
        self.log.append(StepRecord.from_plain(again_from_json(record.to_plain())))
        assert self.log[-1] == record
        self.dealt.append([(positions.tolist(), count) for positions, count in shares])
        self.check_bounds(sum(batches), len(lost))

    def check_bounds(self, batch: int, lost: int) -> None:
        cursor, holes = self.cursor, self.cursor.holes
        length = cursor.length
        assert self.left == [i for a, b in [*holes, (cursor.position, length)] for i in range(a, b)]
        assert cursor.remaining == len(self.left) and cursor.finished == (not self.left)
        self.lost_since_no_hole += lost
        self.largest_step = max(self.largest_step, batch)
        assert len(holes) <= self.lost_since_no_hole
        assert len(holes) <= sum(end - first for first, end in holes) <= self.largest_step
        if not holes:
            self.lost_since_no_hole = 0


@given(st.integers(1, 400), st.lists(dealings(), max_size=30), st.integers(1, 12), st.integers(1, 9))
def test_each_sample_is_committed_exactly_once(length: int, steps: List[Dealing], size: int, per_rank: int) -> None:
    epoch = Epoch(length)
    for size_of_step, asked, lost in steps:
        if not epoch.left:
            break
        epoch.take(size_of_step, asked, lost)
        later = SampleCursor(length)  # a rank that joins, or a job that begins again
        later.load_state_dict(again_from_json(epoch.cursor.state_dict()))
        assert later.state_dict() == epoch.cursor.state_dict()
        epoch.cursor = later
    while epoch.left:
        epoch.take(size, per_rank, [])
    committed = Counter(i for record in epoch.log for a, b in record.ranges for i in range(a, b))
    assert committed == Counter(range(length))
    assert check_committed_once(length, epoch.log) == 1
    again = [(record, [(p.tolist(), n) for p, n in shares]) for record, shares in replay(length, epoch.log)]
    assert again == list(zip(epoch.log, epoch.dealt))


def test_samples_of_a_lost_rank_come_first_in_the_next_step() -> None:
    cursor = SampleCursor(100)
    record = cursor.commit(4, 10, lost=[1])
    assert record.ranges == ((0, 10), (20, 40))
    assert (cursor.position, cursor.holes, cursor.remaining) == (40, ((10, 20),), 70)
    assert [cursor.deal(rank, 3, 6)[0].tolist() for rank in range(3)] == [
        [10, 11, 12, 13, 14, 15],
        [16, 17, 18, 19, 40, 41],
        [42, 43, 44, 45, 46, 47],
    ]
    cursor.commit(3, 6)
    assert (cursor.position, cursor.holes) == (48, ())


def test_the_last_rank_of_a_step_leaves_no_hole() -> None:
    cursor = SampleCursor(100)
    cursor.commit(4, 10, lost=[3])
    assert (cursor.position, cursor.holes) == (30, ())


def test_what_is_left_at_the_end_is_shared_out_evenly() -> None:
    cursor = SampleCursor(10)
    shares = [cursor.deal(rank, 4, 8) for rank in range(4)]
    assert [padding for _, padding in shares] == [6, 5, 6, 5]
    assert [positions[:3].tolist() for positions, _ in shares] == [[0, 1, 0], [2, 3, 4], [5, 6, 1], [7, 8, 9]]
    assert cursor.commit(4, 8, lost=[0, 3]).ranges == ((2, 7),)
    assert cursor.holes == ((0, 2),) and cursor.position == 7


def test_padding_is_never_missing_however_few_samples_there_are() -> None:
    positions, padding = SampleCursor(2).deal(2, 3, 5)
    assert (padding, len(positions)) == (4, 5) and set(positions.tolist()) == {0, 1}


def test_numbers_of_numpy_are_taken_too() -> None:
    cursor = SampleCursor(10)
    positions, _ = cursor.deal(1, 2, np.int64(2))
    assert positions.dtype == np.int64 and positions.tolist() == [2, 3]
    assert again_from_json(cursor.commit(2, np.array([1, 2])).to_plain())["per_rank"] == [1, 2]


def test_a_copy_goes_its_own_way() -> None:
    cursor = SampleCursor(10)
    cursor.commit(1, 2)
    ahead = cursor.copy()
    assert ahead.state_dict() == cursor.state_dict()
    ahead.commit(2, 3)
    assert (cursor.position, cursor.step, ahead.position, ahead.step) == (2, 1, 8, 2)


def test_epochs_follow_one_another_and_steps_count_on() -> None:
    cursor, log = SampleCursor(5), []
    for epoch in range(3):
        cursor.begin(epoch)
        while not cursor.finished:
            log.append(cursor.commit(2, 2))
    assert [(record.epoch, record.step) for record in log] == [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]
    assert check_committed_once(5, log) == 3
    assert check_committed_once(5, log[:-1]) == 2
    with pytest.raises(InvalidState, match="epoch 2 is finished"):
        cursor.deal(0, 1, 1)
    with pytest.raises(InvalidState, match="epoch 2 is finished"):
        cursor.commit(1, 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda cursor: SampleCursor(0), "length=0"),
        (lambda cursor: cursor.deal(2, 2, 1), "rank=2"),
        (lambda cursor: cursor.deal(0, 2, 0), "not all 0"),
        (lambda cursor: cursor.deal(0, 2, [1, 2, 3]), "one for each of size=2"),
        (lambda cursor: cursor.deal(0, 2, [3, -1]), "not negative"),
        (lambda cursor: cursor.commit(0, 1), "size=0"),
        (lambda cursor: cursor.commit(2, 1, lost=[0, 1]), "not all of them"),
        (lambda cursor: cursor.commit(2, 1, lost=[2]), "below size=2"),
        (lambda cursor: cursor.load_state_dict(SampleCursor(8).state_dict()), "8 samples"),
        (lambda cursor: cursor.load_state_dict({**cursor.state_dict(), "holes": [[2, 2]]}), "are no place"),
        (lambda cursor: cursor.load_state_dict({**cursor.state_dict(), "holes": [[1, 4]]}), "are no place"),
        (lambda cursor: cursor.load_state_dict({**cursor.state_dict(), "position": 12}), "are no place"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(call: Any, words: str) -> None:
    cursor = SampleCursor(10)
    cursor.commit(2, 2)
    before = cursor.state_dict()
    with pytest.raises(InvalidArgument, match=words):
        call(cursor)
    assert cursor.state_dict() == before


@pytest.mark.parametrize(
    "documented",
    [*(SampleCursor, SampleCursor.deal, SampleCursor.commit, StepRecord.from_plain), *(replay, check_committed_once)],
)
def test_the_examples_run(documented: Any) -> None:
    log = log_of_an_epoch()
    space: Any = {"SampleCursor": SampleCursor, "StepRecord": StepRecord, "cursor": SampleCursor(1000), "json": json}
    space |= {"line": json.dumps(log[0].to_plain()), "log": log, "epochs": 1, "dataset": range(60)}
    space |= {"replay": replay, "check_committed_once": check_committed_once}
    assert run_examples(documented.__doc__, space)


def log_of_an_epoch() -> List[StepRecord]:
    epoch = Epoch(60)
    for lost in ([], [1], [], [0, 2]):
        epoch.take(4, 3, lost)
    while epoch.left:
        epoch.take(2, 5, [])
    return epoch.log


def test_a_log_that_loses_or_repeats_a_sample_is_found_out() -> None:
    log = log_of_an_epoch()
    assert check_committed_once(60, log) == 1
    next_epoch = dataclasses.replace(log[0], epoch=1)
    for place, record in enumerate(log):
        first, end = record.ranges[0]
        with pytest.raises(InvalidArgument, match="both committed"):
            check_committed_once(60, [*log, record])
        shorter = [*log[:place], dataclasses.replace(record, ranges=((first + 1, end), *record.ranges[1:]))]
        shorter += log[place + 1 :]
        assert check_committed_once(60, shorter) == 0
        with pytest.raises(InvalidArgument, match=f"no step has committed positions {first} to {first}"):
            check_committed_once(60, [*shorter, next_epoch])
        with pytest.raises(InvalidArgument, match=f"step {place} of the log says"):
            list(replay(60, shorter))
        for wrong in ([*log[:place], *log[place + 1 :], next_epoch], [*log[:place], record, *log[place:]]):
            with pytest.raises(InvalidArgument, match="must come"):
                list(replay(60, wrong))
