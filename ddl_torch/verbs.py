"""The verbs of ``ddl`` for torch tensors on the CPU; each does what its namesake in ``ddl.Communicator`` does.

Collective: every rank of ``communicator`` (default: the world) calls the same verb in the same order. Results are new
tensors without history: these verbs are not differentiable. Verbs with a trailing underscore write their tensor, which
must be contiguous. Those with ``_async`` return a ``Work`` at once; until it is done, its tensor must not be touched.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple, Union

import torch

import ddl
from ddl import Average, Communicator, ReduceOp
from ddl_torch._tensors import Work, alias, from_array, plain, to_array, written

__all__ = [
    *("allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "prepare_allreduce"),
    *("broadcast", "broadcast_", "broadcast_async", "broadcast_async_"),
    *("reducescatter", "reducescatter_async", "allgather", "allgather_async", "alltoall", "alltoall_async"),
    *("reduce", "reduce_async", "gather", "gather_async", "scatter", "scatter_async"),
    *("barrier", "barrier_async", "send", "send_async", "recv", "recv_async"),
]

Group = Optional[Communicator]
Received = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]


def _of(communicator: Group) -> Communicator:
    return ddl.world() if communicator is None else communicator


def _copy(tensor: torch.Tensor, verb: str) -> torch.Tensor:
    """Return a new, contiguous tensor with the contents of ``tensor``."""
    return plain(tensor, verb).clone(memory_format=torch.contiguous_format)


# --- all-reduce ---


def allreduce(tensor: torch.Tensor, *, op: ReduceOp = Average, communicator: Group = None) -> torch.Tensor:
    """Combine ``tensor`` over all ranks; return the result, the same bits on every rank. Blocking.

    >>> mean = ddl_torch.allreduce(tensor)
    """
    return allreduce_(_copy(tensor, "allreduce"), op=op, communicator=communicator)


def allreduce_(tensor: torch.Tensor, *, op: ReduceOp = Average, communicator: Group = None) -> torch.Tensor:
    """As ``allreduce``, in place."""
    _of(communicator).allreduce_(_sum_target(tensor, "allreduce_", op), op=op)
    return written(tensor)(None)


def allreduce_async(
    tensor: torch.Tensor, *, op: ReduceOp = Average, name: str = "", communicator: Group = None
) -> Work[torch.Tensor]:
    """As ``allreduce``, without blocking. ``name`` appears in errors."""
    return allreduce_async_(_copy(tensor, "allreduce_async"), op=op, name=name, communicator=communicator)


def allreduce_async_(
    tensor: torch.Tensor, *, op: ReduceOp = Average, name: str = "", communicator: Group = None
) -> Work[torch.Tensor]:
    """As ``allreduce_``, without blocking."""
    target = _sum_target(tensor, "allreduce_async_", op)
    return Work(_of(communicator).allreduce_async_(target, op=op, name=name), written(tensor))


def prepare_allreduce(
    tensor: torch.Tensor, *, op: ReduceOp = Average, name: str = "", communicator: Group = None
) -> Callable[[], torch.Tensor]:
    """Return ``allreduce_`` of ``tensor`` as a function to be called again and again, at less cost per call."""
    target = _sum_target(tensor, "prepare_allreduce", op)
    run = _of(communicator).prepare_allreduce(target, op=op, name=name)
    finish = written(tensor)

    def call() -> torch.Tensor:
        run()
        return finish(None)

    return call


def _sum_target(tensor: torch.Tensor, verb: str, op: ReduceOp) -> torch.Tensor:
    target = alias(tensor, verb)
    _check_op(tensor, verb, op)
    return target


def _check_op(tensor: torch.Tensor, verb: str, op: ReduceOp) -> None:
    if tensor.is_complex() and op not in (ddl.Average, ddl.Sum):
        raise ddl.InvalidArgument(f"{verb}: complex numbers can be averaged and summed; op={op!r} is not defined here")


# --- broadcast ---


def broadcast(tensor: torch.Tensor, *, root: int = 0, communicator: Group = None) -> torch.Tensor:
    """Return a new tensor with the contents of ``tensor`` of rank ``root``; shapes and types are equal. Blocking."""
    return broadcast_(_copy(tensor, "broadcast"), root=root, communicator=communicator)


def broadcast_(tensor: torch.Tensor, *, root: int = 0, communicator: Group = None) -> torch.Tensor:
    """As ``broadcast``, in place."""
    alias(tensor, "broadcast_")
    _of(communicator).broadcast_(to_array(tensor, "broadcast_"), root=root)
    return written(tensor)(None)


def broadcast_async(tensor: torch.Tensor, *, root: int = 0, communicator: Group = None) -> Work[torch.Tensor]:
    """As ``broadcast``, without blocking."""
    return broadcast_async_(_copy(tensor, "broadcast_async"), root=root, communicator=communicator)


def broadcast_async_(tensor: torch.Tensor, *, root: int = 0, communicator: Group = None) -> Work[torch.Tensor]:
    """As ``broadcast_``, without blocking."""
    alias(tensor, "broadcast_async_")
    array = to_array(tensor, "broadcast_async_")
    return Work(_of(communicator).broadcast_async_(array, root=root), written(tensor))


# --- reduce-scatter, reduce ---


def _summable(tensor: torch.Tensor, verb: str, op: ReduceOp) -> Any:
    """Return the contents for a verb that adds up and returns a new array.

    numpy has no bfloat16: such tensors are added up as float32 and rounded once, at the end.
    """
    own = plain(tensor, verb)
    _check_op(own, verb, op)
    return to_array(own.float() if own.dtype == torch.bfloat16 else own, verb)


def _unsum(dtype: torch.dtype) -> Callable[[Any], Any]:
    if dtype == torch.bfloat16:
        return lambda array: None if array is None else torch.from_numpy(array).bfloat16()
    return lambda array: None if array is None else from_array(array, dtype)


def reducescatter(tensor: torch.Tensor, *, op: ReduceOp = Average, communicator: Group = None) -> torch.Tensor:
    """Combine ``tensor`` over all ranks; return this rank's share of the rows. Blocking.

    Where the rows do not divide by the number of ranks, the first ranks get one more.
    """
    array = _summable(tensor, "reducescatter", op)
    result: torch.Tensor = _unsum(tensor.dtype)(_of(communicator).reducescatter(array, op=op))
    return result


def reducescatter_async(
    tensor: torch.Tensor, *, op: ReduceOp = Average, communicator: Group = None
) -> Work[torch.Tensor]:
    """As ``reducescatter``, without blocking."""
    array = _summable(tensor, "reducescatter_async", op)
    return Work(_of(communicator).reducescatter_async(array, op=op), _unsum(tensor.dtype))


def reduce(
    tensor: torch.Tensor, *, root: int = 0, op: ReduceOp = Average, communicator: Group = None
) -> Optional[torch.Tensor]:
    """Combine ``tensor`` over all ranks; return the result on ``root``, None elsewhere. Blocking."""
    array = _summable(tensor, "reduce", op)
    result: Optional[torch.Tensor] = _unsum(tensor.dtype)(_of(communicator).reduce(array, root=root, op=op))
    return result


def reduce_async(
    tensor: torch.Tensor, *, root: int = 0, op: ReduceOp = Average, communicator: Group = None
) -> Work[Optional[torch.Tensor]]:
    """As ``reduce``, without blocking."""
    array = _summable(tensor, "reduce_async", op)
    return Work(_of(communicator).reduce_async(array, root=root, op=op), _unsum(tensor.dtype))


# --- all-gather, all-to-all, gather, scatter ---


def allgather(tensor: torch.Tensor, *, communicator: Group = None) -> torch.Tensor:
    """Return the tensors of all ranks along the first dimension, which may differ by rank. Blocking."""
    array = to_array(tensor, "allgather")
    return from_array(_of(communicator).allgather(array), tensor.dtype)


def allgather_async(tensor: torch.Tensor, *, communicator: Group = None) -> Work[torch.Tensor]:
    """As ``allgather``; sizes are exchanged before it returns."""
    work = _of(communicator).allgather_async(to_array(tensor, "allgather_async"))
    dtype = tensor.dtype
    return Work(work, lambda array: from_array(array, dtype))


def alltoall(tensor: torch.Tensor, splits: Optional[Sequence[int]] = None, *, communicator: Group = None) -> Received:
    """Send ``splits[r]`` rows (default: an equal share) to each rank ``r``; return the rows received. Blocking.

    With ``splits`` (numbers, or a tensor of them), the result is the pair (rows, received splits).
    """
    array = to_array(tensor, "alltoall")
    return _received(tensor.dtype)(_of(communicator).alltoall(array, splits))


def alltoall_async(
    tensor: torch.Tensor, splits: Optional[Sequence[int]] = None, *, communicator: Group = None
) -> Work[Received]:
    """As ``alltoall``; sizes are exchanged before it returns."""
    work = _of(communicator).alltoall_async(to_array(tensor, "alltoall_async"), splits)
    return Work(work, _received(tensor.dtype))


def _received(dtype: torch.dtype) -> Callable[[Any], Received]:
    def finish(result: Any) -> Received:
        if isinstance(result, tuple):
            return from_array(result[0], dtype), torch.from_numpy(result[1])
        return from_array(result, dtype)

    return finish


def gather(tensor: torch.Tensor, *, root: int = 0, communicator: Group = None) -> Optional[torch.Tensor]:
    """Return on ``root`` the tensors of all ranks along the first dimension, None elsewhere. Blocking."""
    array = _of(communicator).gather(to_array(tensor, "gather"), root=root)
    return None if array is None else from_array(array, tensor.dtype)


def gather_async(tensor: torch.Tensor, *, root: int = 0, communicator: Group = None) -> Work[Optional[torch.Tensor]]:
    """As ``gather``; sizes are exchanged before it returns."""
    work = _of(communicator).gather_async(to_array(tensor, "gather_async"), root=root)
    dtype = tensor.dtype
    return Work(work, lambda array: None if array is None else from_array(array, dtype))


def scatter(tensor: Optional[torch.Tensor] = None, *, root: int = 0, communicator: Group = None) -> torch.Tensor:
    """Return this rank's share of the rows of the root's ``tensor``, which matters on ``root`` only. Blocking."""
    return scatter_async(tensor, root=root, communicator=communicator).wait()


def scatter_async(
    tensor: Optional[torch.Tensor] = None, *, root: int = 0, communicator: Group = None
) -> Work[torch.Tensor]:
    """As ``scatter``; type and shape are exchanged before it returns."""
    group = _of(communicator)
    array, name = None, None
    if group.rank == root:
        if tensor is None:
            raise ddl.InvalidArgument(f"scatter: rank {root} is the root and must pass a tensor")
        array, name = to_array(tensor, "scatter"), str(tensor.dtype)
    dtype: torch.dtype = getattr(torch, group.broadcast_object(name, root=root).split(".")[-1])
    return Work(group.scatter_async(array, root=root), lambda rows: from_array(rows, dtype))


# --- barrier, send, recv ---


def barrier(*, communicator: Group = None) -> None:
    """Return when every rank has called it. Blocking."""
    _of(communicator).barrier()


def barrier_async(*, communicator: Group = None) -> Work[None]:
    """As ``barrier``, without blocking."""
    return Work(_of(communicator).barrier_async(), lambda _: None)


def send(tensor: torch.Tensor, dst: int, *, communicator: Group = None) -> None:
    """Send ``tensor`` to rank ``dst``, which calls ``recv``. Not collective; blocks until it may be written again."""
    _of(communicator).send(to_array(tensor, "send"), dst)


def send_async(tensor: torch.Tensor, dst: int, *, communicator: Group = None) -> Work[None]:
    """As ``send``, without blocking."""
    return Work(_of(communicator).send_async(to_array(tensor, "send_async"), dst), lambda _: None)


def recv(tensor: torch.Tensor, src: int, *, communicator: Group = None) -> torch.Tensor:
    """Receive into ``tensor`` what rank ``src`` sends, of the same shape and type. Not collective; blocking."""
    return recv_async(tensor, src, communicator=communicator).wait()


def recv_async(tensor: torch.Tensor, src: int, *, communicator: Group = None) -> Work[torch.Tensor]:
    """As ``recv``, without blocking."""
    alias(tensor, "recv")
    return Work(_of(communicator).recv_async(to_array(tensor, "recv"), src), written(tensor))
