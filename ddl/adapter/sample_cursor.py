"""``SampleCursor``: which samples of an epoch were used in finished steps, while ranks come and go.

The order of an epoch is a permutation that all ranks have alike. This file knows only positions in it, 0 to length - 1.
A step deals runs of positions to its ranks. When it has ended they are *committed*. A rank may die within a step that
the others finish without it. Its run stays uncommitted then, and the next step deals it first. So no sample is lost,
and none comes twice. All ranks have the same cursor, since all see the same sizes and losses; nothing is sent.

What is uncommitted is a short list of ranges: the rest of the order, and the *holes* before it. Each step gives a
``StepRecord``. The records of a training prove that each sample was used once, and deal the same again (``replay``).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple, Union

import numpy as np

from ddl.errors import InvalidArgument, InvalidState

__all__ = ["PerRank", "Range", "SampleCursor", "StepRecord", "check_committed_once", "replay"]

#: How many samples a step asks of its ranks: the same number of each, or a number for each.
PerRank = Union[int, Sequence[int]]
#: The positions from the first number up to, and without, the second.
Range = Tuple[int, int]


@dataclass(frozen=True)
class StepRecord:
    """A finished step: a line of the log of a training. It does not change.

    generation, members: which ranks of the job took part, as the caller numbers them; a log says so, nothing uses it.
    step: how many steps were finished before it, in all epochs. epoch: the number of the epoch.
    size, per_rank, lost: how it was dealt, and whose shares were not used; see ``SampleCursor.commit``.
    ranges: the positions that it committed, ascending.
    """

    generation: int
    step: int
    epoch: int
    size: int
    per_rank: PerRank
    lost: Tuple[int, ...]
    ranges: Tuple[Range, ...]
    members: Tuple[int, ...] = ()

    def to_plain(self) -> Dict[str, Any]:
        """Return it as plain data, which JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> StepRecord:
        """Return the record that ``to_plain`` gave ``plain`` of, also after a way through JSON.

        >>> StepRecord.from_plain(json.loads(line))
        """
        return cls(
            generation=plain["generation"],
            step=plain["step"],
            epoch=plain["epoch"],
            size=plain["size"],
            per_rank=_plain_numbers(plain["per_rank"]),
            lost=tuple(plain["lost"]),
            ranges=tuple((first, end) for first, end in plain["ranges"]),
            members=tuple(plain["members"]),
        )


class SampleCursor:
    """Deals the positions of an epoch to any number of ranks, and remembers which were committed.

    length: samples of the data set, 1 or more. Used by one thread at a time; nothing here is collective or blocks.

    How long the list of holes can be: a step makes it longer by at most the ranks that it lost, and never has it more
    ranges than samples. All holes together have at most as many samples as the largest step had (of all its ranks). A
    step as large as that deals all of them. So after a step without a loss they are mostly gone.

    >>> cursor = SampleCursor(1000)
    >>> positions, padding = cursor.deal(rank=2, size=4, per_rank=32)
    >>> record = cursor.commit(size=4, per_rank=32)
    """

    def __init__(self, length: int) -> None:
        """Raises ``InvalidArgument`` for a length below 1."""
        if length < 1:
            raise InvalidArgument(f"SampleCursor: length={length} must be 1 or more")
        self.length = length  #: samples of an epoch
        self.step = 0  #: how many steps were committed, in all epochs
        self.epoch = 0
        self._left: Tuple[Range, ...] = ((0, length),)  # what is not committed: ascending, and no two ranges touch

    @property
    def position(self) -> int:
        """How long the committed prefix of the order is, but for ``holes``."""
        return self._left[-1][0] if self._left and self._left[-1][1] == self.length else self.length

    @property
    def holes(self) -> Tuple[Range, ...]:
        """The ranges before ``position`` that are not committed, ascending: they are dealt first."""
        return self._left[:-1] if self._left and self._left[-1][1] == self.length else self._left

    @property
    def remaining(self) -> int:
        """How many samples of the epoch are not committed."""
        return sum(end - first for first, end in self._left)

    @property
    def finished(self) -> bool:
        """Whether all samples of the epoch are committed."""
        return not self._left

    def begin(self, epoch: int) -> None:
        """Go to the beginning of ``epoch``, also from the middle of another one."""
        self.epoch, self._left = epoch, ((0, self.length),)

    def copy(self) -> SampleCursor:
        """Return another cursor that stands at the same place: for those who deal ahead of what is committed."""
        other = SampleCursor(self.length)
        other.step, other.epoch, other._left = self.step, self.epoch, self._left
        return other

    def deal(self, rank: int, size: int, per_rank: PerRank) -> Tuple[np.ndarray, int]:
        """Return the positions of ``rank`` in the next step, and how many of them, at the end, are padding.

        size: how many ranks take part. per_rank: samples of each rank, or one number for each, the same on all ranks.
        The result has this rank's number of positions, int64. They are a run of what is left, holes first. Asking
        again gives the same, until ``commit``.

        Padding is there only in the last step of an epoch, if less is left than the step asks for. What is left is
        then divided in the proportion of ``per_rank``, and positions from the start of the order fill the batches up.
        They never count as committed.

        Raises ``InvalidArgument`` for numbers that cannot be, and ``InvalidState`` once the epoch is finished.

        >>> positions, padding = cursor.deal(0, 2, per_rank=[32, 16])
        """
        if not 0 <= rank < size:
            raise InvalidArgument(f"SampleCursor: rank={rank} is not one of size={size} ranks")
        asked, edges = self._edges(size, per_rank)
        own = _cut_out(self._left, edges[rank], edges[rank + 1])
        padding = asked[rank + 1] - asked[rank] - (edges[rank + 1] - edges[rank])
        before = asked[rank] - edges[rank]  # padding of the ranks before, which get other positions for it
        parts = [np.arange(first, end) for first, end in own]
        parts.append(np.arange(before, before + padding) % self.length)
        return np.concatenate(parts).astype(np.int64, copy=False), padding

    def commit(
        self,
        size: int,
        per_rank: PerRank,
        *,
        lost: Iterable[int] = (),
        generation: int = 0,
        members: Iterable[int] = (),
    ) -> StepRecord:
        """Note that the next step has ended, and return its record. All ranks call this alike.

        size, per_rank: as ``deal`` was called for it. lost: the ranks, of these ``size``, without whose samples it has
        ended; the next step deals them first. generation, members: what the record is to say.

        Raises ``InvalidArgument`` for numbers that cannot be, or if all ranks were lost, as such a step has not ended;
        ``InvalidState`` once the epoch is finished. The cursor is unharmed then.

        >>> cursor.commit(4, 32, lost=[3]).ranges
        ((0, 96),)
        """
        missing = sorted(set(lost))
        if missing and not (0 <= missing[0] and missing[-1] < size and len(missing) < size):
            raise InvalidArgument(
                f"SampleCursor: lost={missing} must be numbers of ranks below size={size}, and not all of them"
            )
        _, edges = self._edges(size, per_rank)
        shares = [_cut_out(self._left, edges[rank], edges[rank + 1]) for rank in range(size)]
        used = [run for rank, share in enumerate(shares) if rank not in missing for run in share]
        unused = [run for rank in missing for run in shares[rank]]
        undealt = _cut_out(self._left, edges[size], self.remaining)
        record = StepRecord(
            generation=generation,
            step=self.step,
            epoch=self.epoch,
            size=size,
            per_rank=_plain_numbers(per_rank),
            lost=tuple(missing),
            ranges=_joined(used),
            members=tuple(members),
        )
        self.step, self._left = self.step + 1, _joined([*unused, *undealt])
        return record

    def state_dict(self) -> Dict[str, Any]:
        """Return where it stands, as plain data that JSON can hold: some numbers, and two for each hole."""
        holes = [list(hole) for hole in self.holes]
        place = {"epoch": self.epoch, "position": self.position, "holes": holes}
        return {"length": self.length, "step": self.step, **place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where ``state`` was saved. Raises ``InvalidArgument``, and stays, if that is no place of this order."""
        if state["length"] != self.length:
            raise InvalidArgument(
                f"SampleCursor: the state was saved with {state['length']} samples, and there are {self.length} now"
            )
        left = [(first, end) for first, end in state["holes"]]
        if state["position"] != self.length:
            left.append((state["position"], self.length))
        edges = [-1, *(edge for run in left for edge in run), self.length + 1]
        if any(a >= b for a, b in zip(edges, edges[1:])):
            raise InvalidArgument(
                f"SampleCursor: position={state['position']} and holes={state['holes']} are no place in an order of "
                f"{self.length} samples"
            )
        self.step, self.epoch, self._left = state["step"], state["epoch"], tuple(left)

    def _edges(self, size: int, per_rank: PerRank) -> Tuple[List[int], List[int]]:
        """Return where each rank's batch begins among all that is asked, and where its share begins in what is left."""
        if self.finished:
            raise InvalidState(f"SampleCursor: epoch {self.epoch} is finished; begin the next one")
        numbers = _plain_numbers(per_rank)
        batches = [numbers] * size if isinstance(numbers, int) else numbers
        if size < 1 or len(batches) != size or min(batches) < 0 or sum(batches) < 1:
            raise InvalidArgument(
                f"SampleCursor: per_rank={per_rank!r} must be one number, or one for each of size={size} ranks, not "
                "negative and not all 0"
            )
        asked = [0, *accumulate(batches)]
        count = min(asked[-1], self.remaining)
        return asked, [count * edge // asked[-1] for edge in asked]


def _plain_numbers(per_rank: PerRank) -> Union[int, Tuple[int, ...]]:
    """Return ``per_rank`` without numpy's numbers and what could change later."""
    return int(per_rank) if isinstance(per_rank, (int, np.integer)) else tuple(int(n) for n in per_rank)


def _cut_out(ranges: Iterable[Range], start: int, stop: int) -> List[Range]:
    """Return what lies from ``start`` to ``stop`` if ``ranges`` are laid one behind another."""
    result, offset = [], 0
    for first, end in ranges:
        low, high = max(first, first + start - offset), min(end, first + stop - offset)
        if low < high:
            result.append((low, high))
        offset += end - first
    return result


def _joined(ranges: Iterable[Range]) -> Tuple[Range, ...]:
    """Return the same positions with ranges that touch each other as one; ``ranges`` ascend."""
    result: List[Range] = []
    for first, end in ranges:
        if result and result[-1][1] == first:
            result[-1] = (result[-1][0], end)
        else:
            result.append((first, end))
    return tuple(result)


def replay(length: int, log: Iterable[StepRecord]) -> Iterator[Tuple[StepRecord, List[Tuple[np.ndarray, int]]]]:
    """Deal the steps of a log again: yield each record with what ``deal`` gave to each of its ranks.

    length: of the data set. log: the records of a training from its first step on, in order. Raises
    ``InvalidArgument`` where a step is missing or comes twice, or has committed something else than it was dealt.

    >>> for record, shares in replay(len(dataset), log):
    ...     positions, padding = shares[0]  # what rank 0 trained on
    """
    cursor = SampleCursor(length)
    for record in log:
        if record.step != cursor.step:
            raise InvalidArgument(f"the log has step {record.step} where step {cursor.step} must come")
        if record.epoch != cursor.epoch:
            cursor.begin(record.epoch)
        shares = [cursor.deal(rank, record.size, record.per_rank) for rank in range(record.size)]
        again = cursor.commit(record.size, record.per_rank, lost=record.lost)
        if again.ranges != record.ranges:
            raise InvalidArgument(
                f"step {record.step} of the log says that it committed {record.ranges}, but it was dealt {again.ranges}"
            )
        yield record, shares


def check_committed_once(length: int, log: Iterable[StepRecord]) -> int:
    """Prove by a log that each sample was used once in each epoch; return how many epochs are finished.

    It looks only at what the steps have committed, and not at how that came about. Raises ``InvalidArgument`` that
    names the epoch and the positions which come twice, or which are missing though a later epoch has begun. In the last
    epoch they may be missing; then it does not count as finished.

    >>> assert check_committed_once(len(dataset), log) == epochs
    """
    epochs: Dict[int, List[Tuple[int, int, int]]] = {}
    for record in log:
        epochs.setdefault(record.epoch, []).extend((first, end, record.step) for first, end in record.ranges)
    finished = 0
    for epoch, runs in epochs.items():
        place, step_before, complete = 0, 0, True
        for first, end, step in sorted([*runs, (length, length, -1)]):
            if first < place:
                raise InvalidArgument(
                    f"epoch {epoch}: steps {step_before} and {step} have both committed position {first}"
                )
            if first > place:
                complete = False
                if epoch != max(epochs):
                    raise InvalidArgument(f"epoch {epoch}: no step has committed positions {place} to {first - 1}")
            place, step_before = end, step
        finished += complete
    return finished
