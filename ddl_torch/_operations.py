"""``Operation``: a verb on tensors, ready to be made on a communicator when the ranks have agreed on it.

What one rank alone can refuse is refused when the operation is built, before anything is submitted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Callable, Optional, Sequence, Tuple, TypeVar

import torch

import ddl
from ddl.adapter import operations
from ddl.adapter.calls import check_splits
from ddl.adapter.operations import ANY, Operation, Signature, Waitable, at_once, barrier, grouped
from ddl.adapter.operator_checks import check_type
from ddl.errors import NotSupported
from ddl_torch._memory import in_host
from ddl_torch._streams import GpuTensor, StreamOfCall, is_on_gpu
from ddl_torch._tensors import KINDS, alias, from_array, memory_of, plain, to_array, writing, written
from ddl_torch.adasum import adasum_

__all__ = ["Operation", "absent", "allgather", "allreduce", "alltoall", "barrier", "broadcast", "grouped"]
__all__ += ["check_op", "reducescatter", "summable"]

_WIDER = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}  #: of types that numpy lacks
T = TypeVar("T")
Start = Callable[[ddl.Communicator], Waitable]


def _on_stream(tensor: torch.Tensor, operation: Operation[T]) -> Operation[T]:
    """Return ``operation`` on ``tensor`` so that any thread may run it: see _streams.py."""
    if tensor.is_cpu:
        return operation
    stream = StreamOfCall(tensor.device)
    return replace(
        operation,
        start=stream.bind(operation.start),
        finish=stream.finish(operation.finish),
        call=None if operation.call is None else stream.bind(operation.call),
    )


def _described(tensor: torch.Tensor, rows_differ: bool = False) -> Tuple[str, Tuple[int, ...]]:
    shape = tuple(tensor.shape)
    return _name_of(tensor.dtype), (ANY, *shape[1:]) if rows_differ else shape


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).split(".")[-1]


def _copy(tensor: torch.Tensor, verb: str) -> torch.Tensor:
    """Return a new, contiguous tensor with the contents of ``tensor``."""
    return _clone(plain(tensor, verb), verb)


def _clone(own: torch.Tensor, verb: str) -> torch.Tensor:
    try:
        return own.clone(memory_format=torch.contiguous_format)
    except NotImplementedError as error:  # torch itself can do next to nothing with some types
        raise ddl.InvalidArgument(f"{verb}: tensors of type {own.dtype} cannot be communicated: {error}") from error


def check_op(tensor: torch.Tensor, verb: str, op: ddl.ReduceOp) -> None:
    """Raise ``InvalidArgument`` if elements of the type cannot be combined by ``op``."""
    _check_op(tensor.dtype, verb, op)


@cache  # of what can be combined; an error is not kept
def _check_op(dtype: torch.dtype, verb: str, op: ddl.ReduceOp) -> None:
    check_type(verb, dtype, KINDS.get(dtype, "?"), op, adasum="fc")


def _scale(tensor: torch.Tensor, factor: float) -> None:
    """Multiply in place; integers as float64, truncated."""
    if factor == 1.0:
        return
    with writing(tensor):
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.mul_(factor)
        else:
            tensor.copy_(tensor.double().mul_(factor))


def _widened(tensor: torch.Tensor, op: ddl.ReduceOp) -> torch.Tensor:
    """Return memory for an average of integers on a GPU, whose sum may be more than their type holds; else ``tensor``.

    On the CPU, the verbs of ``ddl`` see to it.
    """
    if tensor.is_cpu or op != ddl.Average or KINDS[tensor.dtype] != "i" or tensor.dtype.itemsize == 8:
        return tensor
    return torch.empty_like(tensor, dtype=torch.int64)


def _factor(factor: Any, verb: str, name: str) -> float:
    """Return the factor as a number; a wrong one would be noticed in the middle of the verb only."""
    try:
        return float(factor)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ddl.InvalidArgument(f"{verb}: {name}={factor!r} is no real number") from error


@lru_cache(maxsize=256)
def _detail(op: ddl.ReduceOp, prescale: float, postscale: float) -> str:
    scales = "" if prescale == postscale == 1.0 else f" prescale_factor={prescale:g} postscale_factor={postscale:g}"
    return f"op={op.name}{scales}"


@lru_cache(maxsize=1024)
def _allreduced(
    dtype: torch.dtype, shape: Tuple[int, ...], op: ddl.ReduceOp, prescale: float, postscale: float
) -> Signature:
    return Signature("allreduce", ((_name_of(dtype), tuple(shape)),), _detail(op, prescale, postscale))


def allreduce(
    tensor: torch.Tensor, op: ddl.ReduceOp, prescale: float, postscale: float, in_place: bool
) -> Operation[torch.Tensor]:
    """All-reduce ``tensor``, or a copy of it."""
    verb = "allreduce_" if in_place else "allreduce"
    if type(prescale) is not float or type(postscale) is not float:
        prescale, postscale = _factor(prescale, verb, "prescale_factor"), _factor(postscale, verb, "postscale_factor")
    known = in_host(tensor) if in_place else None
    source = tensor if known is not None else plain(tensor, verb)
    check_op(source, verb, op)
    if known is not None and prescale == postscale == 1.0 and op != ddl.Adasum:  # the usual case, sooner than below
        return Operation(
            _allreduced(tensor.dtype, tensor.shape, op, 1.0, 1.0),
            lambda communicator: communicator.allreduce_async_(tensor, op=op),
            written(tensor),
            lambda communicator: communicator.allreduce_(known, op=op),
        )
    own = tensor if in_place else _clone(source, verb)
    target = memory_of(own, source if in_place else own, verb)
    summed = _widened(target, op)
    finish = written(own)

    def scaled() -> Any:
        _scale(target, prescale)
        if summed is not target:
            with writing(summed):
                summed.copy_(target)
        return summed

    def unscaled(_: Any) -> torch.Tensor:
        if summed is not target:
            with writing(target):
                target.copy_(summed)
        _scale(target, postscale)
        return finish(None)

    signature = _allreduced(own.dtype, own.shape, op, prescale, postscale)
    if op == ddl.Adasum:

        def combine(communicator: ddl.Communicator) -> torch.Tensor:
            _scale(target, prescale)
            return adasum_(target, communicator=communicator)

        return _on_stream(target, at_once(signature, combine, unscaled))
    operation = Operation(
        signature,
        lambda communicator: communicator.allreduce_async_(scaled(), op=op),
        unscaled,
        lambda communicator: communicator.allreduce_(scaled(), op=op),
    )
    return _on_stream(target, operation)


def broadcast(tensor: torch.Tensor, root: int, name: str, in_place: bool) -> Operation[torch.Tensor]:
    """Broadcast from rank ``root`` of the communicator, which people call ``name``."""
    verb = "broadcast_" if in_place else "broadcast"
    own = tensor if in_place else _copy(tensor, verb)
    alias(own, verb)
    array = to_array(own, verb)
    operation = Operation(
        Signature("broadcast", (_described(own),), f"root_rank={name}"),
        lambda communicator: communicator.broadcast_async_(array, root=root),
        written(own),
        lambda communicator: communicator.broadcast_(array, root=root),
    )
    return _on_stream(own, operation)


def summable(tensor: torch.Tensor, verb: str, op: ddl.ReduceOp) -> Tuple[Any, Callable[[Any], torch.Tensor]]:
    """Return the contents for a verb that adds up and returns a new array, and what makes a tensor of that.

    numpy has neither bfloat16 nor complex32: such tensors on the CPU are added up as float32, or as complex numbers of
    it, and rounded once, at the end.
    """
    own = plain(tensor, verb)
    check_op(own, verb, op)
    if is_on_gpu(own):
        wide = own.long() if _widened(own, op) is not own else own
        return GpuTensor(wide.contiguous()), lambda result: result.to(own.dtype)
    wider = _WIDER.get(own.dtype)
    if wider is not None:
        return to_array(own.to(wider), verb), lambda array: torch.from_numpy(array).to(own.dtype)
    return to_array(own, verb), lambda array: from_array(array, own.dtype)


def reducescatter(tensor: torch.Tensor, op: ddl.ReduceOp, prescale: float, postscale: float) -> Operation[torch.Tensor]:
    """Reduce-scatter the rows."""
    prescale = _factor(prescale, "reducescatter", "prescale_factor")
    postscale = _factor(postscale, "reducescatter", "postscale_factor")
    if op == ddl.Adasum:  # of whatever type
        raise NotSupported(
            "reducescatter: op=ddl.Adasum is there for all-reduces only; use allreduce, and take your rows"
        )
    check_op(plain(tensor, "reducescatter"), "reducescatter", op)
    own = plain(tensor, "reducescatter") if prescale == 1.0 else _copy(tensor, "reducescatter")
    if own.ndim == 0:
        raise ddl.InvalidArgument("reducescatter: a tensor without dimensions has no rows to scatter")
    _scale(own, prescale)
    array, unsum = summable(own, "reducescatter", op)

    def finish(rows: Any) -> torch.Tensor:
        result = unsum(rows)
        _scale(result, postscale)
        return result

    operation = Operation(
        Signature("reducescatter", (_described(own),), _detail(op, prescale, postscale)),
        lambda communicator: communicator.reducescatter_async(array, op=op),
        finish,
        lambda communicator: communicator.reducescatter(array, op=op),
    )
    return _on_stream(own, operation)


def allgather(tensor: torch.Tensor) -> Operation[torch.Tensor]:
    """All-gather along the first dimension, which may differ by rank."""
    array, dtype = to_array(tensor, "allgather"), tensor.dtype
    operation = Operation(
        Signature("allgather", (_described(tensor, rows_differ=True),)),
        lambda communicator: communicator.allgather_async(array),
        lambda rows: from_array(rows, dtype),
        lambda communicator: communicator.allgather(array),
    )
    return _on_stream(tensor, operation)


def alltoall(
    tensor: torch.Tensor, splits: Optional[Sequence[int]], size: int, *, always_pair: bool = False
) -> Operation[Any]:
    """Send ``splits[r]`` rows to each of ``size`` ranks r, none: equal shares.

    With splits, and with ``always_pair``, the result is a pair, with the received splits.
    """
    array, dtype = to_array(tensor, "alltoall"), tensor.dtype
    given = None if splits is None else [int(n) for n in splits]
    shares = check_splits(array, given, size)
    given = shares if always_pair else given
    counts = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32  # as Horovod

    def finish(result: Any) -> Any:
        if isinstance(result, tuple):
            return from_array(result[0], dtype), torch.from_numpy(result[1]).to(counts)
        return from_array(result, dtype)

    operation = Operation(
        Signature("alltoall", (_described(tensor, rows_differ=True),)),
        lambda communicator: communicator.alltoall_async(array, given),
        finish,
        lambda communicator: communicator.alltoall(array, given),
    )
    return _on_stream(tensor, operation)


def absent(signature: Signature) -> Start:
    """Return what a rank that has joined does in place of the operation: see ``ddl.adapter.operations.absent``."""

    def of_zeros(dtype: str, shape: Tuple[int, ...], op: ddl.ReduceOp) -> Operation[torch.Tensor]:
        return allreduce(torch.zeros(shape, dtype=getattr(torch, dtype)), op, 1.0, 1.0, True)

    return operations.absent(signature, of_zeros)
