"""All-reduce of arrays and of trees of them, in compiled functions and outside; Optax; parameters at the start."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np

import ddl
from ddl.adapter.fused_arrays import broadcast_many_
from ddl.adapter.operator_checks import check_type
from ddl.reduce_op import Average, OpLike, ReduceOp, Sum, parse_op
from ddl_jax._primitive import allreduce_p, communicator

__all__ = ["allreduce", "average_gradients", "broadcast_parameters"]

#: Bytes from which on an array is sent from where it is. Smaller ones of a type are sent as one.
_ALONE = 256 << 10


def allreduce(tree: Any, op: OpLike = Average) -> Any:
    """Return ``tree`` with each array combined with those of all ranks: by default their average.

    Collective: all ranks call it with trees of the same arrays, in the same order, in the same compiled function or
    outside of any. It blocks where JAX waits for the result. ``tree``: arrays in lists, dictionaries and the like, of
    any type that adds up; an average needs floating point or complex numbers. The derivative of a sum is the sum of the
    derivatives, and that of an average their average; other operators have none. Raises ``InvalidArgument`` for a type
    that has no such operator, ``InvalidState`` before ``init``. What fails in a compiled function raises JAX's
    ``JaxRuntimeError`` with DDL's text.

    >>> gradients = ddl_jax.allreduce(jax.grad(loss)(parameters))
    """
    operator = parse_op(op, "allreduce")
    leaves, structure = jax.tree.flatten(tree)
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    for array in arrays:
        _check(array.dtype, operator)
    communicator()
    if not arrays:
        return tree
    return jax.tree.unflatten(structure, _in_few(arrays, operator))


def broadcast_parameters(tree: Any, root: int = 0) -> Any:
    """Return ``tree`` as rank ``root`` has it, bit by bit: parameters, or an optimizer's state, before the first step.

    Collective, blocking; not in a compiled function. Arrays stay on their devices; numbers that are no arrays become
    arrays. Raises ``InvalidArgument``, on all ranks, if their arrays differ in number, type or shape.

    >>> parameters, state = ddl_jax.broadcast_parameters((parameters, state))
    """
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.array(leaf, order="C") for leaf in leaves]
    plain = [array.view(np.uint16) if array.dtype.kind == "V" and array.itemsize == 2 else array for array in arrays]
    broadcast_many_(plain, root=root)
    placed = [
        jax.device_put(array, leaf.sharding) if isinstance(leaf, jax.Array) else array
        for array, leaf in zip(arrays, leaves)
    ]
    return jax.tree.unflatten(structure, placed)


def average_gradients(op: OpLike = Average) -> Any:
    """Return a transformation for Optax that combines the ranks' gradients: the first one of ``optax.chain``.

    What comes behind it, as clipping, decay and momentum, sees the average. Its ``update`` is ``allreduce``.

    >>> optimizer = optax.chain(ddl_jax.average_gradients(), optax.adam(1e-3))
    """
    import optax  # only here: JAX does without

    operator = parse_op(op, "average_gradients")

    def update(updates: Any, state: Any, parameters: Any = None) -> Tuple[Any, Any]:
        return allreduce(updates, operator), state

    return optax.GradientTransformation(lambda parameters: optax.EmptyState(), update)


def _check(dtype: Any, op: ReduceOp) -> None:
    kind = "f" if jnp.issubdtype(dtype, jnp.floating) else np.dtype(dtype).kind
    check_type("allreduce", dtype, kind, op, adasum="")
    if op == Average and kind not in "fc":
        raise ddl.InvalidArgument(f"allreduce: an average of {dtype} is no whole number; use op=Sum, or cast it")


def _in_few(arrays: Sequence[Any], op: ReduceOp) -> List[Any]:
    """Send large arrays by themselves, and the small ones of each type behind one another: one call of XLA in all."""
    together: Dict[Any, List[int]] = {}
    for number, array in enumerate(arrays):
        if array.size * array.dtype.itemsize < _ALONE:
            together.setdefault(array.dtype, []).append(number)
    groups = [numbers for numbers in together.values() if len(numbers) > 1]
    grouped = {number for numbers in groups for number in numbers}
    alone = [number for number in range(len(arrays)) if number not in grouped]
    joined = [jnp.concatenate([arrays[number].ravel() for number in numbers]) for numbers in groups]
    sent = _reduction(int(op))(*joined, *(arrays[number] for number in alone))
    results = dict(zip(alone, sent[len(groups) :]))
    for numbers, flat in zip(groups, sent):
        ends = np.cumsum([arrays[number].size for number in numbers])[:-1]
        for number, part in zip(numbers, jnp.split(flat, ends)):
            results[number] = part.reshape(arrays[number].shape)
    return [results[number] for number in range(len(arrays))]


@functools.cache
def _reduction(op: int) -> Any:
    """Return the all-reduce by an operator as a function of arrays that can be differentiated."""

    def reduce(*arrays: Any) -> Tuple[Any, ...]:
        return tuple(allreduce_p.bind(*arrays, op=op))

    def forward(*arrays: Any) -> Tuple[Any, None]:
        if op not in (Average, Sum):
            raise ddl.InvalidArgument(f"allreduce: op={ReduceOp(op)!r} has no derivative; use Average or Sum")
        return reduce(*arrays), None

    def backward(_: None, derivatives: Tuple[Any, ...]) -> Tuple[Any, ...]:
        return reduce(*derivatives)

    reduction = jax.custom_vjp(reduce)
    reduction.defvjp(forward, backward)
    return reduction
