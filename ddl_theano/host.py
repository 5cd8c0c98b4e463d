"""Operations on arrays, outside a graph: all-reduces, which the Op uses, too, and the broadcast at the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Dict, Iterable, Iterator, List, Optional
from weakref import WeakKeyDictionary

import numpy as np
from theano.compile import SharedVariable
from theano.tensor import TensorType, complex_dtypes

import ddl
from ddl import Average, ReduceOp
from ddl.adapter.consistency import check_consistent
from ddl.adapter.fused_arrays import Fused, broadcast_many_
from ddl.adapter.rank_prefix import naming_rank
from ddl.adapter.same_step import StepNumber
from ddl.adapter.step_record import note_step

__all__ = ["Reduction", "allreduce_arrays", "broadcast_parameters", "check_type", "read", "tensors_of", "write"]

_GRADIENTS = "gradients"  #: arrays of this name are those of a training step

_reductions: Dict[Any, Reduction] = {}  # of arrays, by operator and name
_begun: WeakKeyDictionary[ddl.Communicator, int] = WeakKeyDictionary()  #: how many reductions each job has begun

_ADVICE = (
    "An exception has ended a function between two all-reduces on a rank that went on afterwards. All ranks get this "
    "error, so catch it on all of them to leave the step out, or none of them goes on"
)


def check_type(dtype: Any, op: ReduceOp, what: str) -> None:
    """Raise ``InvalidArgument`` if elements of the type cannot be combined by ``op``."""
    kinds = "f" if op == Average else "fiub" if op in (ddl.Sum, ddl.Min, ddl.Max, ddl.Product) else ""
    if np.dtype(dtype).kind not in kinds:
        text = f"{what} is of type {dtype}, which has no op={getattr(op, 'name', op)}; floats have Average, "
        raise ddl.InvalidArgument(f"allreduce: {text}Sum, Min, Max and Product, integers and bool all but Average")


class Reduction:
    """An all-reduce of lists of arrays, in place; ranks are compared the first time, and for each new layout.

    Each call compares the reduction's number: all ranks make first calls in the same order.
    """

    def __init__(self, op: ReduceOp, name: str) -> None:
        self.op, self.name = op, name
        self._step = StepNumber(0, "")
        self._world: Optional[ddl.Communicator] = None
        self._known: Dict[Any, Fused] = {}

    def __call__(self, arrays: List[np.ndarray]) -> None:
        world = ddl.world()
        if world is not self._world:
            advice = "Build the same graph on all ranks, or say by name= what belongs together."
            check_consistent(world, "ddl_theano", [f"the all-reduce {self.name!r}"], advice)
            self._world, self._known = world, {}
            _begun[world] = _begun.get(world, 0) + 1
            self._step = StepNumber(_begun[world], f"the all-reduce {self.name!r}")
        layout = tuple([(array.dtype, array.shape) for array in arrays])
        if layout not in self._known:
            self._known = self._known if len(self._known) < 8 else {}  # the last batch of an epoch may be smaller
            self._known[layout] = Fused(world, arrays, op=self.op, name=self.name, advice=_ADVICE)
        self._known[layout](arrays, self._step)


@naming_rank
def allreduce_arrays(arrays: Iterable[Any], *, op: ReduceOp = Average, name: str = _GRADIENTS) -> List[np.ndarray]:
    """Combine arrays over all ranks, as one operation; return them. Collective, blocking.

    arrays: what a function of Theano returns; types and errors as in ``allreduce``. They are overwritten where they are
    contiguous, writable and no views; copies take the place of others. A call with the default ``name`` is noted as a
    training step (docs/record.md): give another one to what is no gradient, and to a second call in a step.

    >>> loss, *gradients = function(x, y)
    >>> update(*ddl_theano.allreduce_arrays(gradients))
    """
    values = [np.asarray(array) for array in arrays]
    own = {id(array): i for i, array in enumerate(values) if array.flags.owndata and array.flags.carray}  # each once
    values = [array if own.get(id(array)) == i else np.array(array, order="C") for i, array in enumerate(values)]
    for number, array in enumerate(values):
        check_type(array.dtype, op, f"array {number}")
    _reductions.setdefault((op, name), Reduction(op, name))(values)
    if name == _GRADIENTS:
        note_step()
    return values


@naming_rank
def broadcast_parameters(parameters: Any, root: int = 0) -> None:
    """Overwrite shared variables on every rank with those of rank ``root``, bit by bit, as one operation.

    Collective, blocking. parameters: shared variables in lists or dictionaries, or updates (dictionaries of them, lists
    of pairs): then what is updated, momenta as well. As many on every rank, in the same order. States of random
    generators (of ``RandomStreams``) stay each rank's own. Raises ``InvalidArgument``, on all ranks if theirs differ.

    >>> ddl_theano.broadcast_parameters(updates)
    """
    shared = tensors_of(parameters, "broadcast_parameters")
    arrays = read(shared)
    broadcast_many_(arrays, root=root)
    write(shared, arrays)


def tensors_of(parameters: Any, who: str) -> List[Any]:
    """Return the shared variables in what ``broadcast_parameters`` takes, each once, without those of generators.

    ``who`` has been given it. Raises ``InvalidArgument`` for what is no shared variable, or no tensor of real numbers.
    """
    shared = dict.fromkeys(
        variable for variable in _shared(parameters, who) if not getattr(variable.tag, "is_rng", False)
    )
    for variable in shared:
        if not isinstance(variable.type, TensorType) or variable.dtype in complex_dtypes:
            raise ddl.InvalidArgument(f"{who}: {variable} is a {variable.type}; use ddl.broadcast_object")
    return list(shared)


def read(shared: List[Any]) -> List[np.ndarray]:
    """Return copies of what shared variables hold, contiguous."""
    return [np.array(variable.get_value(borrow=True), order="C") for variable in shared]


def write(shared: List[Any], arrays: List[np.ndarray]) -> None:
    """Let shared variables hold copies of ``arrays``."""
    for variable, array in zip(shared, arrays):
        variable.set_value(array)


def _shared(given: Any, who: str) -> Iterator[Any]:
    if isinstance(given, SharedVariable):
        yield given
    elif isinstance(given, Mapping):
        yield from _shared([key if isinstance(key, SharedVariable) else value for key, value in given.items()], who)
    elif isinstance(given, tuple) and len(given) == 2 and not isinstance(given[1], SharedVariable):
        yield from _shared(given[0], who)  # of updates: the other one is an expression
    elif isinstance(given, (list, tuple)):
        for part in given:
            yield from _shared(part, who)
    else:
        raise ddl.InvalidArgument(f"{who}: a {type(given).__name__} is no shared variable of Theano")
