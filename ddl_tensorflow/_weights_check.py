"""``WeightsCheck``: are the weights the same on all ranks, to the bit? ``DistributedOptimizer(check=…)``.

Ranks exchange a number for each variable, the sum of its memory as 64-bit words. Where two differ, they look for the
element: first the block that it is in, then the block itself.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np
import tensorflow as tf

import ddl
from ddl.adapter.operations import CompletedOperation, Waitable
from ddl.adapter.process_sets import ProcessSet
from ddl_tensorflow import _operations
from ddl_tensorflow._call import call
from ddl_tensorflow._collectives import as_written
from ddl_tensorflow._digests import digest
from ddl_tensorflow._names import op_name, part_name
from ddl_tensorflow._where import Where
from ddl_tensorflow.gradients import name_of, unwrapped

__all__ = ["WeightsCheck", "compare"]

Array = np.ndarray[Any, Any]

_BLOCK = 1024  #: elements
_SHOWN = 8  #: ranks whose values an error has


class WeightsCheck:
    """Checks the weights of one optimizer after every ``check``-th step; 0: never, and at no cost."""

    def __init__(self, check: int, check_every: int, process_set: ProcessSet) -> None:
        if check and check_every:
            raise ddl.InvalidArgument(f"check={check!r} and check_every={check_every!r} are two names for the same")
        every = check or check_every
        if not isinstance(every, int) or every < 0:
            raise ddl.InvalidArgument(f"check={every!r} must be 0 (never) or a number of steps")
        self.every = every
        self._process_set = process_set

    @property
    def wanted(self) -> bool:
        """Whether this rank has anything to compare, ever."""
        return self.every > 0 and self._process_set.included() and self._process_set.size() > 1

    @as_written
    def __call__(self, steps: Any, variables: Sequence[Any]) -> Any:
        """After ``steps`` steps: compare ``variables``, if it is time to: then it is collective. Returns a tensor.

        Raises ``InvalidState`` on all ranks, where TensorFlow runs it, naming the first variable that differs.
        """
        names = [name_of(variable, number) for number, variable in enumerate(variables)]
        number = tf.cast(tf.convert_to_tensor(steps), tf.int64)

        def check() -> tf.Tensor:
            known = op_name(None, "check")

            def function(arrays: List[Array], _: Any, __: bool) -> Waitable:
                compare(Where(self._process_set), int(arrays[0]), names, arrays[1:], known)
                return CompletedOperation(arrays[0])

            weights = [unwrapped(variable).read_value() for variable in variables]
            (done,) = call(function, [number, *weights], [tf.int64], always=True, at_once=False)
            return tf.reshape(done, [])

        return tf.cond(tf.equal(number % self.every, 0), check, lambda: number)


def compare(where: Where, step: int, names: Sequence[str], arrays: Sequence[Array], name: Optional[str] = None) -> None:
    """Raise ``InvalidState``, on all ranks, unless all have the same bits in ``arrays``. Collective, blocking."""
    table = _gathered(where, np.array([digest(array) for array in arrays], np.uint64), name, "weights")
    differing = np.flatnonzero((table != table[0]).any(axis=0)).tolist()
    if not differing:
        return
    first = differing[0]
    raise ddl.InvalidState(
        f"{ddl.world().who} check: after step {step}, weights differ between ranks: {len(differing)} of "
        f"{len(arrays)} variables, and first {names[first]!r} ({arrays[first].dtype} of shape "
        f"{arrays[first].shape}){_element(where, arrays[first], name)}. Either they were not the same at the start: "
        "broadcast them then; or this program changes them on some ranks only: look for what depends on the rank, or "
        "on the order in which it is added up"
    )


def _element(where: Where, array: Array, name: Optional[str]) -> str:
    """Say which element differs first, and what it is on each rank."""
    flat = np.ascontiguousarray(array).reshape(-1)
    sums = np.array([digest(flat[at : at + _BLOCK]) for at in range(0, flat.size, _BLOCK)], np.uint64)
    table = _gathered(where, sums, name, "blocks")
    start = int(np.flatnonzero((table != table[0]).any(axis=0))[0]) * _BLOCK
    block = flat[start : start + _BLOCK]
    rows = _gathered(where, block.view(np.uint8), name, "block").reshape(where.size, block.size, -1)
    place = int(np.flatnonzero((rows != rows[0]).any(axis=(0, 2)))[0])
    values = [np.ascontiguousarray(row[place]).view(flat.dtype)[0] for row in rows]
    index = [int(i) for i in np.unravel_index(start + place, array.shape)]
    shown = ", ".join(f"{value!s} on rank {rank}" for rank, value in enumerate(values[:_SHOWN]))
    return f", element {index} of it: {shown}{', …' if len(values) > _SHOWN else ''}"


def _gathered(where: Where, row: Array, name: Optional[str], what: str) -> Array:
    """Return the rows of all ranks."""
    operation = _operations.allgather(np.ascontiguousarray(row)[None])
    return where.run(operation, part_name(name, what))
