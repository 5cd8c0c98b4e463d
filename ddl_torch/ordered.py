"""Verbs on tensors that all ranks of a communicator call in the same order; and messages between two ranks.

Each does what the verb of the same name in ``ddl.Communicator`` does, on ``communicator`` (default: the world). Results
are new tensors without history. Those with ``_async`` return a ``Work`` at once; until it is done, its tensor must not
be touched.

Tensors are dense; where they are only moved, of any type. All raise ``InvalidArgument`` before anything is sent. Where
ranks call differently there is ``CollectiveMismatch``; after DDL_TIMEOUT without a sign of a rank,
``CollectiveTimeout``; and ``PeerLost`` if one has gone: from those with ``_async`` in ``Work.wait``. Then the
communicator is broken.
"""

from __future__ import annotations

from typing import Callable, Optional

import torch

import ddl
from ddl import Average, Communicator
from ddl.adapter.rank_prefix import naming_rank
from ddl.errors import InvalidState
from ddl.reduce_op import OpLike, parse_op
from ddl_torch._operations import check_op, summable
from ddl_torch._tensors import Work, alias, from_array, to_array, written

__all__ = ["gather", "gather_async", "prepare_allreduce", "recv", "recv_async", "reduce", "reduce_async"]
__all__ += ["scatter", "scatter_async", "send", "send_async"]


def _of(communicator: Optional[Communicator]) -> Communicator:
    return ddl.world() if communicator is None else communicator


@naming_rank
def prepare_allreduce(
    tensor: torch.Tensor, *, op: OpLike = Average, name: str = "", communicator: Optional[Communicator] = None
) -> Callable[[], torch.Tensor]:
    """Return ``allreduce_`` of ``tensor`` as a function to be called again and again, at less cost per call.

    Not collective; calls of the function are, and block. ``tensor`` must be contiguous. ``name`` appears in errors. A
    call raises ``InvalidState`` if the tensor has other memory by then (``set_``, or a queue between processes).
    """
    target = alias(tensor, "prepare_allreduce")
    op = parse_op(op, "prepare_allreduce")
    check_op(tensor, "prepare_allreduce", op)
    run = _of(communicator).prepare_allreduce(target, op=op, name=name)
    finish = written(tensor)
    address = tensor.data_ptr()

    def call() -> torch.Tensor:
        if tensor.data_ptr() != address:
            raise InvalidState(
                f"prepare_allreduce: the memory of the tensor{f' {name!r}' if name else ''} is another one now (set_, "
                ".data, or a queue between processes); prepare the operation again"
            )
        run()
        return finish(None)

    return call


@naming_rank
def reduce(
    tensor: torch.Tensor, root_rank: int = 0, *, op: OpLike = Average, communicator: Optional[Communicator] = None
) -> Optional[torch.Tensor]:
    """Combine ``tensor`` over all ranks; return the result on ``root_rank``, None elsewhere. Blocking.

    Shapes and types are those of ``allreduce``.
    """
    return reduce_async(tensor, root_rank, op=op, communicator=communicator).wait()


@naming_rank
def reduce_async(
    tensor: torch.Tensor, root_rank: int = 0, *, op: OpLike = Average, communicator: Optional[Communicator] = None
) -> Work[Optional[torch.Tensor]]:
    """As ``reduce``, without blocking: ``wait`` of the ``Work`` returns the result, or raises."""
    op = parse_op(op, "reduce")
    array, finish = summable(tensor, "reduce", op)
    work = _of(communicator).reduce_async(array, root=root_rank, op=op)
    return Work(work, lambda result: None if result is None else finish(result))


# --- gather, scatter ---


@naming_rank
def gather(
    tensor: torch.Tensor, root_rank: int = 0, *, communicator: Optional[Communicator] = None
) -> Optional[torch.Tensor]:
    """Return on ``root_rank`` the tensors of all ranks along the first dimension, None elsewhere. Blocking.

    Of any type; the first dimension may differ by rank. ``InvalidArgument``, on all ranks, if anything else does.
    """
    array = _of(communicator).gather(to_array(tensor, "gather"), root=root_rank)
    return None if array is None else from_array(array, tensor.dtype)


@naming_rank
def gather_async(
    tensor: torch.Tensor, root_rank: int = 0, *, communicator: Optional[Communicator] = None
) -> Work[Optional[torch.Tensor]]:
    """As ``gather``, without blocking, but that sizes are exchanged before it returns."""
    work = _of(communicator).gather_async(to_array(tensor, "gather_async"), root=root_rank)
    dtype = tensor.dtype
    return Work(work, lambda array: None if array is None else from_array(array, dtype))


@naming_rank
def scatter(
    tensor: Optional[torch.Tensor] = None, root_rank: int = 0, *, communicator: Optional[Communicator] = None
) -> torch.Tensor:
    """Return this rank's share of the rows of the root's ``tensor``, which matters on ``root_rank`` only. Blocking.

    Of any type. Where the rows do not divide by the number of ranks, the first ranks get one more. ``InvalidArgument``
    if the root passes none, on the root; if it has no dimensions, on all ranks.
    """
    return scatter_async(tensor, root_rank, communicator=communicator).wait()


@naming_rank
def scatter_async(
    tensor: Optional[torch.Tensor] = None, root_rank: int = 0, *, communicator: Optional[Communicator] = None
) -> Work[torch.Tensor]:
    """As ``scatter``, without blocking, but that type and shape are exchanged before it returns."""
    communicator = _of(communicator)
    array, name = None, None
    if communicator.rank == root_rank:
        if tensor is None:
            raise ddl.InvalidArgument(f"scatter: rank {root_rank} is the root and must pass a tensor")
        array, name = to_array(tensor, "scatter"), str(tensor.dtype)
    dtype: torch.dtype = getattr(torch, communicator.broadcast_object(name, root=root_rank).split(".")[-1])
    return Work(communicator.scatter_async(array, root=root_rank), lambda rows: from_array(rows, dtype))


# --- send, recv ---


@naming_rank
def send(tensor: torch.Tensor, dst: int, *, communicator: Optional[Communicator] = None) -> None:
    """Send ``tensor`` to rank ``dst``, which calls ``recv``. Not collective; blocks until it may be written again."""
    _of(communicator).send(to_array(tensor, "send"), dst)


@naming_rank
def send_async(tensor: torch.Tensor, dst: int, *, communicator: Optional[Communicator] = None) -> Work[None]:
    """As ``send``, without blocking."""
    return Work(_of(communicator).send_async(to_array(tensor, "send_async"), dst), lambda _: None)


@naming_rank
def recv(tensor: torch.Tensor, src: int, *, communicator: Optional[Communicator] = None) -> torch.Tensor:
    """Receive into ``tensor`` what rank ``src`` sends, of the same shape and type. Not collective; blocking."""
    return recv_async(tensor, src, communicator=communicator).wait()


@naming_rank
def recv_async(tensor: torch.Tensor, src: int, *, communicator: Optional[Communicator] = None) -> Work[torch.Tensor]:
    """As ``recv``, without blocking."""
    alias(tensor, "recv")
    return Work(_of(communicator).recv_async(to_array(tensor, "recv"), src), written(tensor))
