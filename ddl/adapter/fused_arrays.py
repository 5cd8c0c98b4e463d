"""Many arrays as one operation: for a model's gradients, and for its parameters at the start.

Small arrays are copied one behind another, to memory that the ranks of a host share, and back: one call of the core for
each direction. Large arrays are sent from where they are: a copy would take longer than an operation of their own.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

import ddl
from ddl import clock
from ddl.adapter.consistency import check_consistent
from ddl.adapter.rank_prefix import naming_rank
from ddl.adapter.same_step import StepElements, StepNumber, who_is_apart
from ddl.communicator import Communicator, Work
from ddl.errors import InvalidArgument, InvalidState
from ddl.memory import Pieces, empty
from ddl.negotiation import timeline
from ddl.reduce_op import Average, OpLike, parse_op

__all__ = ["Fused", "broadcast_many_"]

Array = Any  #: of numpy, or what the core takes for one

_ALONE = 256 << 10  #: bytes from which on an array is sent from where it is: two copies take as long as an operation


def _line(number: int, array: np.ndarray) -> str:
    return f"array {number} of {array.dtype} and shape {tuple(array.shape)}"


class _Layout:
    """Which arrays are sent alone, and which lie together. Depends on their sizes and types only."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.lines = [_line(i, x) for i, x in enumerate(arrays)]
        self.alone = [i for i, x in enumerate(arrays) if x.nbytes >= _ALONE]
        self.together: List[Tuple[np.ndarray, Pieces]] = []
        small: Dict[np.dtype, List[int]] = {}
        for i, x in enumerate(arrays):
            if 0 < x.nbytes < _ALONE:
                small.setdefault(x.dtype, []).append(i)
        for dtype, numbers in small.items():
            counts = [arrays[i].size for i in numbers]
            flat = empty(sum(counts), dtype)
            self.together.append((flat, Pieces(flat, numbers, counts)))


class Fused:
    """An all-reduce of many arrays, in place: of the same ones in each step, or of others like them.

    ``arrays``: numpy arrays, of which types and shapes count; no two may share memory. Making it is not collective;
    the first call compares them over the ranks and raises ``InvalidArgument``, on all ranks, where they differ.
    ``name`` appears in errors and in a timeline. Used by one thread at a time.

    ``advice``: what a script should do if ranks are not in step. With it, each call also takes the number of this
    rank's step, and raises ``InvalidState``, on all ranks, where that differs (same_step.py); the arrays are worth
    nothing then.

    >>> average = Fused(ddl.world(), gradients)
    >>> average(gradients)
    """

    def __init__(
        self,
        communicator: Communicator,
        arrays: Sequence[np.ndarray],
        *,
        op: OpLike = Average,
        name: str = "gradients",
        advice: str = "",
    ) -> None:
        self._communicator = communicator
        self._advice = advice
        self._step_elements = StepElements(x.dtype for x in arrays if 0 < x.nbytes < _ALONE) if advice else None
        self._step_number = StepNumber(0, "")
        self._layout = _Layout([*arrays, self._step_elements.array] if self._step_elements else arrays)
        self._lines = self._layout.lines[: len(arrays)]
        self._op = parse_op(op)
        self._name = name
        # One operation after the other is the fastest where the processors do it; the network does several at once.
        topology = communicator.topology
        self._in_turn = topology.local_size == topology.size
        self._steps = [
            (pieces, communicator.prepare_allreduce(flat, op=self._op, name=name))
            for flat, pieces in self._layout.together
        ]
        self._checked = False
        self._works: Optional[List[Work]] = None
        self._begun = 0.0
        self._under_way: List[Array] = []

    @naming_rank
    def __call__(self, arrays: List[Array], step_number: Optional[StepNumber] = None) -> None:
        """All-reduce ``arrays`` in place; those of now may lie elsewhere than those before.

        Collective, blocking. They are contiguous and writable. Raises ``InvalidArgument`` if they are not like the
        first ones (then nothing has been sent by this rank), and what any all-reduce raises.
        """
        if not self._in_turn:
            self.start(arrays, step_number)
            self.wait()
            return
        arrays = self._packed(arrays, step_number)
        for i in self._layout.alone:
            self._communicator.allreduce_(arrays[i], op=self._op)
        for pieces, step in self._steps:
            step()
            pieces.unpack(arrays)
        self._end()

    @naming_rank
    def start(self, arrays: List[Array], step_number: Optional[StepNumber] = None) -> None:
        """Begin to all-reduce ``arrays`` and return; they must not be touched before ``wait``, which writes to them.

        Collective; blocks only the first time. The core's own thread goes on with it, without the interpreter's lock.
        Raises ``InvalidState`` if the last one has not been waited for, and as a call does.
        """
        arrays = self._packed(arrays, step_number)
        buffers = [arrays[i] for i in self._layout.alone] + [flat for flat, _ in self._layout.together]
        self._works = [self._communicator.allreduce_async_(buffer, op=self._op, name=self._name) for buffer in buffers]
        self._under_way = arrays

    @naming_rank
    def wait(self) -> None:
        """Wait for what ``start`` began. Raises ``InvalidState`` if nothing is, and what all-reduces raise."""
        if self._works is None:
            raise InvalidState(f"{self._communicator.who} {self._name}: wait without a start")
        works, arrays = self._works, self._under_way
        self._works, self._under_way = None, []
        for work in works:
            work.wait()
        for pieces, _ in self._steps:
            pieces.unpack(arrays)
        self._end()

    def _packed(self, arrays: List[Array], step_number: Optional[StepNumber]) -> List[Array]:
        """Begin: return what is reduced, with the small ones copied to where they lie together."""
        self._check(arrays)
        self._begun = clock.now()
        if self._step_elements:
            assert step_number is not None  # a caller that gives advice also gives the step
            self._step_number = step_number
            self._step_elements.write(step_number.number)
            arrays = [*arrays, self._step_elements.array]
        for pieces, _ in self._steps:
            pieces.pack(arrays)
        return arrays

    def _end(self) -> None:
        if self._step_elements and self._step_elements.differ():
            raise who_is_apart(self._communicator, self._name, self._step_number, self._advice)
        recorder = timeline.active()
        if recorder is not None:
            recorder.operation(self._name, "allreduce", self._begun, self._begun, clock.now())

    def _check(self, arrays: List[Array]) -> None:
        if self._works is not None:
            raise InvalidState(f"{self._communicator.who} {self._name}: started again before wait")
        known = self._lines
        if len(arrays) != len(known):
            raise InvalidArgument(f"{self._name}: {len(arrays)} arrays; at first there were {len(known)}")
        for i in self._layout.alone:
            if _line(i, arrays[i]) != known[i]:
                raise InvalidArgument(f"{self._name}: {_line(i, arrays[i])}; at first {known[i]}")
        if not self._checked:
            lines = [f"op={self._op.name}", *self._lines]
            check_consistent(self._communicator, self._name, lines, "Build the same model on all ranks.")
            self._checked = True


@naming_rank
def broadcast_many_(arrays: Sequence[Array], *, root: int = 0, communicator: Optional[Communicator] = None) -> None:
    """Overwrite ``arrays`` with those of rank ``root``: as ``Fused`` sends them. Collective, blocking.

    Raises ``InvalidArgument``, on all ranks, if their types or shapes differ; ``communicator``: the world by default.
    """
    communicator = ddl.world() if communicator is None else communicator
    values = list(arrays)
    layout = _Layout(values)
    check_consistent(communicator, "broadcast", layout.lines, "Build the same model on all ranks.")
    for i in layout.alone:
        communicator.broadcast_(values[i], root=root)
    for flat, pieces in layout.together:
        pieces.pack(values)
        communicator.broadcast_(flat, root=root)
        if communicator.rank != root:
            pieces.unpack(values)
