"""The collectives of Horovod on tensors on the CPU, each for one tensor; ``grouped.py`` has those for several.

Ranks may submit them in any order. One with a ``name`` runs when all ranks of the process set have submitted that
name; those without are paired in the order in which each rank submits them. Where ranks submit different things under
one name, all of them get ``CollectiveMismatch`` and nothing is sent. With ``communicator`` nothing is agreed on: all
its ranks make the same calls in the same order, at less cost.

The blocking verbs that return new tensors are differentiable. Verbs with a trailing underscore write their tensor,
which must be contiguous. Those with ``_async`` return a ``Work`` at once, which ``poll`` and ``synchronize`` take, too;
until it is done, its tensor must not be touched. They raise ``InvalidArgument`` themselves, and other errors in
``Work.wait``. Tensors are dense. ``root_rank`` is a rank of the job, or of ``communicator``.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch

import ddl
from ddl import Average, Communicator
from ddl.adapter.operations import choose_op
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl.reduce_op import OpLike, parse_op
from ddl_torch import _operations
from ddl_torch._differentiable import differentiable
from ddl_torch._tensors import Work, plain
from ddl_torch._where import Where, global_process_set
from ddl_torch.compression import Compression, casting

__all__ = [
    *("allreduce", "allreduce_", "allreduce_async", "allreduce_async_"),
    *("broadcast", "broadcast_", "broadcast_async", "broadcast_async_"),
    *("reducescatter", "reducescatter_async", "allgather", "allgather_async", "alltoall", "alltoall_async"),
    *("barrier", "barrier_async"),
]

Group = Optional[Communicator]
Received = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]


# --- all-reduce ---


@naming_rank
def allreduce(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """Combine ``tensor`` over all ranks (default: average); return the result, the same bits on every rank. Blocking.

    tensor: on the CPU, of the same shape and type on all ranks.
    average: Horovod's old name of ``op``.
    name: ranks may submit named operations in any order; those without are paired in the order of the calls.
    compression: how the tensor is written meanwhile: one of ``Compression``, or a ``Compressor`` of your own.
    op: ``Average`` (default), ``Sum``, ``Min``, ``Max``, ``Product``, ``Adasum``, or the name of one, "sum". Truth
        values have no average, complex numbers no order and no product.
    prescale_factor, postscale_factor: multiply the tensor before and the result afterwards; integers as float64,
        truncated.
    process_set: whose ranks; default: all of the job.
    communicator: its ranks instead, which then all make the same calls in the same order, at less cost.

    The gradient is the same operation on the gradients. Raises ``InvalidArgument`` before anything is sent;
    ``CollectiveMismatch`` if ranks submit different things; ``CollectiveTimeout`` if one of them submits nothing
    (DDL_TIMEOUT); ``PeerLost`` if one is lost.

    >>> mean = ddl_torch.allreduce(tensor)
    """
    kind = choose_op(average, op)
    where, cast = Where(process_set, communicator), casting(compression)

    def run(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        small, context = cast.compress(plain(tensors[0], "allreduce"))
        operation = _operations.allreduce(small, kind, prescale_factor, postscale_factor, False)
        return [cast.decompress(where.run(operation, name), context)]

    def back(gradients: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        operation = _operations.allreduce(gradients[0], kind, prescale_factor, postscale_factor, False)
        return [where.run(operation, None)]

    return differentiable(run, back, [tensor])[0]


@naming_rank
def allreduce_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """As ``allreduce``, in place: overwrites ``tensor``, which must be contiguous, and returns it."""
    operation = _operations.allreduce(tensor, choose_op(average, op), prescale_factor, postscale_factor, True)
    return Where(process_set, communicator).run(operation, name)


@naming_rank
def allreduce_async(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``allreduce``, without blocking: ``wait`` of the ``Work`` returns the result, or raises."""
    operation = _operations.allreduce(tensor, choose_op(average, op), prescale_factor, postscale_factor, False)
    return Where(process_set, communicator).start(operation, name)


@naming_rank
def allreduce_async_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``allreduce_``, without blocking: ``wait`` of the ``Work`` returns the result, or raises."""
    operation = _operations.allreduce(tensor, choose_op(average, op), prescale_factor, postscale_factor, True)
    return Where(process_set, communicator).start(operation, name)


# --- broadcast ---


def _broadcast(tensor: torch.Tensor, root_rank: int, where: Where, in_place: bool) -> Any:
    return _operations.broadcast(tensor, where.index(root_rank), str(root_rank), in_place)


@naming_rank
def broadcast(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """Return a new tensor with the contents of ``tensor`` of ``root_rank``. Blocking.

    tensor: on the CPU, of any type, the same shape and type on all ranks. root_rank: a rank of the job, or of
    ``communicator``. name, process_set, communicator: as for ``allreduce``. The gradient is the average of all ranks'
    gradients on ``root_rank``, zero elsewhere. Raises what ``allreduce`` does.

    >>> weight = ddl_torch.broadcast(weight, 0)
    """
    where = Where(process_set, communicator)

    def run(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return [where.run(_broadcast(tensors[0], root_rank, where, False), name)]

    def back(gradients: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        mean = where.run(_operations.allreduce(gradients[0], Average, 1.0, 1.0, False), None)
        return [mean if where.rank == where.index(root_rank) else mean.zero_()]

    return differentiable(run, back, [tensor])[0]


@naming_rank
def broadcast_(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """As ``broadcast``, in place: overwrites ``tensor``, which must be contiguous, and returns it."""
    where = Where(process_set, communicator)
    result: torch.Tensor = where.run(_broadcast(tensor, root_rank, where, True), name)
    return result


@naming_rank
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``broadcast``, without blocking: ``wait`` of the ``Work`` returns the result, or raises."""
    where = Where(process_set, communicator)
    return where.start(_broadcast(tensor, root_rank, where, False), name)


@naming_rank
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``broadcast_``, without blocking: ``wait`` of the ``Work`` returns the result, or raises."""
    where = Where(process_set, communicator)
    return where.start(_broadcast(tensor, root_rank, where, True), name)


# --- reduce-scatter ---


@naming_rank
def reducescatter(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: OpLike = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """Combine ``tensor`` over all ranks; return this rank's share of the rows. Blocking.

    Where the rows do not divide by the number of ranks, the first ranks get one more. The gradient is all ranks'
    gradients of their rows; for a sum, times the number of ranks (as in Horovod). Types, factors and errors are those
    of ``allreduce``; a tensor without dimensions is ``InvalidArgument``.
    """
    kind = parse_op(op, "reducescatter")
    where, cast = Where(process_set, communicator), casting(compression)

    def run(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        small, context = cast.compress(plain(tensors[0], "reducescatter"))
        operation = _operations.reducescatter(small, kind, prescale_factor, postscale_factor)
        return [cast.decompress(where.run(operation, name), context)]

    def back(gradients: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        factor = prescale_factor * postscale_factor * (where.size if kind == ddl.Sum else 1)
        return [where.run(_operations.allgather(gradients[0] * factor), None)]

    return differentiable(run, back, [tensor])[0]


@naming_rank
def reducescatter_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    op: OpLike = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``reducescatter``, without blocking: ``wait`` of the ``Work`` returns the result, or raises."""
    operation = _operations.reducescatter(tensor, parse_op(op, "reducescatter"), prescale_factor, postscale_factor)
    return Where(process_set, communicator).start(operation, name)


# --- all-gather, all-to-all ---


@naming_rank
def allgather(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """Return the tensors of all ranks along the first dimension, which may differ by rank. Blocking.

    tensor: on the CPU, of any type; type and other dimensions are the same on all ranks. name, process_set,
    communicator: as for ``allreduce``. The gradient is the average of all ranks' gradients of this rank's rows. Raises
    what ``allreduce`` does.

    >>> everybody = ddl_torch.allgather(tensor)
    """
    where = Where(process_set, communicator)

    def run(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return [where.run(_operations.allgather(tensors[0]), name)]

    def back(gradients: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return [own_rows(gradients[0], len(tensor), where)]

    return differentiable(run, back, [tensor])[0]


def own_rows(gradient: torch.Tensor, rows: int, where: Where) -> torch.Tensor:
    """Return the average over ranks of the gradient of the rows that this rank brought to an all-gather."""
    mean = where.run(_operations.allreduce(gradient, Average, 1.0, 1.0, False), None)
    before = where.run(_operations.allgather(torch.tensor([rows])), None)[: where.rank]
    return mean.narrow(0, int(before.sum()), rows)


@naming_rank
def allgather_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``allgather``, without blocking: ``wait`` of the ``Work`` returns the result, or raises.

    With ``communicator``, sizes are exchanged before it returns.
    """
    return Where(process_set, communicator).start(_operations.allgather(tensor), name)


@naming_rank
def alltoall(
    tensor: torch.Tensor,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Received:
    """Send ``splits[r]`` rows (default: an equal share) to each rank ``r``; return the rows received. Blocking.

    With ``splits`` (numbers, or a tensor of them), the result is the pair (rows, received splits). Types and errors are
    those of ``allgather``; ``splits`` that do not sum to the rows are ``InvalidArgument``.
    """
    where = Where(process_set, communicator)
    received: List[torch.Tensor] = []  # how many rows of each rank, which may differ without splits, too

    def run(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        rows, counts = where.run(_operations.alltoall(tensors[0], splits, where.size, always_pair=True), name)
        received.append(counts)
        return [rows]

    def back(gradients: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return [where.run(_operations.alltoall(gradients[0], received[0].tolist(), where.size), None)[0]]

    rows = differentiable(run, back, [tensor])[0]
    return rows if splits is None else (rows, received[0])


@naming_rank
def alltoall_async(
    tensor: torch.Tensor,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[Received]:
    """As ``alltoall``, without blocking: ``wait`` of the ``Work`` returns the result, or raises.

    With ``communicator``, sizes are exchanged before it returns.
    """
    where = Where(process_set, communicator)
    return where.start(_operations.alltoall(tensor, splits, where.size), name)


# --- barrier ---


@naming_rank
def barrier(process_set: ProcessSet = global_process_set, *, communicator: Group = None) -> None:
    """Return when every rank of ``process_set`` (default: all), or of ``communicator``, has called it. Blocking.

    Raises ``CollectiveTimeout`` if one does not (DDL_TIMEOUT), ``PeerLost`` if one is lost.

    >>> ddl_torch.barrier()
    """
    Where(process_set, communicator).run(_operations.barrier(), None)


@naming_rank
def barrier_async(process_set: ProcessSet = global_process_set, *, communicator: Group = None) -> Work[None]:
    """As ``barrier``, without blocking: ``wait`` of the ``Work`` returns the result, or raises."""
    return Where(process_set, communicator).start(_operations.barrier(), None)
