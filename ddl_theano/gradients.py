"""``allreduce``: variables of a graph combined over the ranks, by one Op, which a function runs once for each call."""

from __future__ import annotations

import itertools
from copy import copy
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import theano
import theano.tensor as T
from theano.gradient import DisconnectedType, NullType

import ddl
from ddl.adapter.rank_prefix import naming_rank
from ddl.adapter.step_record import note_step
from ddl_theano.host import Reduction, check_type

__all__ = ["AllReduce", "allreduce"]

_numbers = itertools.count(1)


class AllReduce(theano.gof.Op):
    """All inputs, combined over the ranks. ``place``, which no other one has, says which comes first (_order.py)."""

    __props__ = ("place", "in_place")

    def __init__(self, op: ddl.ReduceOp, name: Optional[str], gradient_of: Tuple[int, int, int] = (-1, 0, 0)) -> None:
        self.place = (gradient_of[0] + 1, -gradient_of[2], next(_numbers))  # gradients last, that of the last one first
        self.in_place, self.destroy_map = False, {}  # type: Tuple[bool, Dict[int, List[int]]]
        self.reduction = Reduction(op, name or f"allreduce {self.place[2]}")

    def overwriting(self, inputs: Sequence[Any]) -> List[Any]:
        """Return the results of the same one, but that it overwrites its inputs."""
        twin = copy(self)
        twin.in_place, twin.destroy_map, twin.reduction = True, {i: [i] for i in range(len(inputs))}, self.reduction
        return twin(*inputs, return_list=True)

    def __getstate__(self) -> Dict[str, Any]:
        return {**vars(self), "reduction": Reduction(self.reduction.op, self.reduction.name)}

    def make_node(self, *inputs: Any) -> Any:
        variables = [_dense(variable, f"variable {i}", self.reduction.op) for i, variable in enumerate(inputs)]
        return theano.gof.Apply(self, variables, [variable.type() for variable in variables])

    def perform(self, node: Any, inputs: Sequence[Any], outputs: Sequence[List[Any]], params: Any = None) -> None:
        # Where others may need the inputs, or these are strided or read-only, results have memory of their own.
        arrays = [array if self.in_place and array.flags.carray else np.array(array, order="C") for array in inputs]
        try:
            self.reduction(arrays)
        except ddl.Error as error:
            raise _as_it_is(type(error))(str(error)).with_traceback(error.__traceback__) from None
        for output, array in zip(outputs, arrays):
            output[0] = array
        if getattr(node.tag, "ends_step", False):  # see _order.py
            note_step()

    def do_constant_folding(self, node: Any) -> bool:
        return False  # what is constant on this rank may be something else on another

    def infer_shape(self, node: Any, shapes: List[Any]) -> List[Any]:
        return shapes

    def connection_pattern(self, node: Any) -> List[List[bool]]:
        return np.eye(len(node.inputs), dtype=bool).tolist()

    def grad(self, inputs: Sequence[Any], gradients: Sequence[Any]) -> List[Any]:
        """Return averages of the gradients for an average, sums for a sum."""
        reduction, result = self.reduction, list(gradients)
        if reduction.op not in (ddl.Average, ddl.Sum):
            raise ddl.InvalidArgument(
                f"{reduction.name}: averages and sums can be differentiated, {reduction.op.name} cannot"
            )
        connected = [i for i, g in enumerate(gradients) if not isinstance(g.type, (DisconnectedType, NullType))]
        if connected:
            op = AllReduce(reduction.op, f"{reduction.name}, gradient", self.place)
            for i, gradient in zip(connected, op(*[gradients[i] for i in connected], return_list=True)):
                discrete = inputs[i].dtype in T.discrete_dtypes
                result[i] = inputs[i].zeros_like(theano.config.floatX) if discrete else gradient
        return result


def _as_it_is(kind: Any) -> Any:
    """Return a class of errors like ``kind``. It drops the text that Theano adds when it makes a new error."""
    own = {
        "__module__": kind.__module__,
        "__init__": lambda self, text: kind.__init__(self, text.partition("\nApply node that caused the error: ")[0]),
        "__reduce__": lambda self: (kind, self.args),
    }
    return type(kind.__name__, (kind,), own)


def _dense(given: Any, what: str, op: ddl.ReduceOp) -> Any:
    kind = getattr(given, "type", type(given).__name__)
    what += f" ({given.name})" if getattr(given, "name", None) else ""
    try:
        variable = T.as_tensor_variable(given)
    except Exception as error:  # whatever the conversion of an object raises
        text = f"{what} is a {kind}; pass a dense tensor of the CPU, as theano.sparse.dense_from_sparse makes"
        raise ddl.InvalidArgument(f"allreduce: {text}") from error
    check_type(variable.dtype, op, what)
    return variable


@naming_rank
def allreduce(variables: Any, *, op: ddl.ReduceOp = ddl.Average, name: Optional[str] = None) -> Any:
    """Return variables that are ``variables`` combined over all ranks; for a list a list, for a single one that.

    variables: dense ones of float16, float32 or float64 (what ``T.grad`` returns), with another ``op`` than Average
    also of integers; as many on every rank, of the same shapes and types. The result is like them, the same bits on all
    ranks. Averages and sums are differentiable. A call of a function that needs the result is collective and blocking;
    it runs several all-reduces in the order in which they were made here. ``name`` is for errors, and compared.

    Raises ``InvalidArgument`` for other variables, ``InvalidState`` before ``init``. The function raises
    ``InvalidArgument``, on all ranks, where their first calls differ, later ``CollectiveMismatch``; ``PeerLost`` etc.

    >>> gradients = ddl_theano.allreduce(T.grad(loss, parameters))
    """
    ddl.world()  # InvalidState now, and not when a function has been compiled
    several = variables if isinstance(variables, (list, tuple)) else [variables]
    results = AllReduce(op, name)(*several, return_list=True) if several else []
    return results if several is variables else results[0]
