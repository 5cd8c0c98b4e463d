"""The collectives of Horovod on tensors, each for one tensor; ``grouped.py`` has those for several.

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
from ddl_torch._forms import Submission, asynchronous, blocking, differentiable, in_place, of_new_tensors
from ddl_torch._operations import Operation
from ddl_torch._process_set import Where, global_process_set
from ddl_torch._tensors import plain
from ddl_torch.compression import Compression, casting

__all__ = [
    *("allreduce", "allreduce_", "allreduce_async", "allreduce_async_"),
    *("broadcast", "broadcast_", "broadcast_async", "broadcast_async_"),
    *("reducescatter", "reducescatter_async", "allgather", "allgather_async", "alltoall", "alltoall_async"),
    *("barrier", "barrier_async"),
]

Received = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
Tensors = Sequence[torch.Tensor]
SIZES_FIRST = "With ``communicator``, sizes are exchanged before it returns."


def first(tensors: Tensors) -> torch.Tensor:
    """Return the one tensor that a verb gives."""
    return tensors[0]


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
    communicator: Optional[Communicator] = None,
) -> torch.Tensor:
    """Combine ``tensor`` over all ranks (default: average); return the result, the same bits on every rank. Blocking.

    tensor: of the same shape and type on all ranks; on the CPU or on a CUDA GPU, as the result is.
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


def _allreduce(
    in_place: bool,
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Optional[Communicator] = None,
) -> Submission[torch.Tensor]:
    kind = choose_op(average, op)

    def operation(tensors: Tensors) -> Operation[torch.Tensor]:
        return _operations.allreduce(tensors[0], kind, prescale_factor, postscale_factor, in_place)

    return Submission(operation, [tensor], Where(process_set, communicator), name)


allreduce_ = blocking(
    in_place(_allreduce, True),
    "allreduce_",
    "As ``allreduce``, in place: overwrites ``tensor``, which must be contiguous, and returns it.",
)
allreduce_async = asynchronous(in_place(_allreduce, False), "allreduce_async")
allreduce_async_ = asynchronous(in_place(_allreduce, True), "allreduce_async_")


# --- broadcast ---


def _broadcast(
    in_place: bool,
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Optional[Communicator] = None,
) -> Submission[torch.Tensor]:
    where = Where(process_set, communicator)

    def operation(tensors: Tensors) -> Operation[torch.Tensor]:
        return _operations.broadcast(tensors[0], where.index(root_rank), str(root_rank), in_place)

    def backward(gradients: Tensors) -> List[torch.Tensor]:
        mean = where.run(_operations.allreduce(gradients[0], Average, 1.0, 1.0, False), None)
        return [mean if where.rank == where.index(root_rank) else mean.zero_()]

    return Submission(operation, [tensor], where, name, backward)


broadcast = of_new_tensors(
    in_place(_broadcast, False),
    "broadcast",
    """Return a new tensor with the contents of ``tensor`` of ``root_rank``. Blocking.

    tensor: of any type, the same shape and type on all ranks. root_rank: a rank of the job, or of
    ``communicator``. name, process_set, communicator: as for ``allreduce``. The gradient is the average of all ranks'
    gradients on ``root_rank``, zero elsewhere. Raises what ``allreduce`` does.

    >>> weight = ddl_torch.broadcast(weight, 0)
    """,
    first,
)
broadcast_ = blocking(
    in_place(_broadcast, True),
    "broadcast_",
    "As ``broadcast``, in place: overwrites ``tensor``, which must be contiguous, and returns it.",
)
broadcast_async = asynchronous(in_place(_broadcast, False), "broadcast_async")
broadcast_async_ = asynchronous(in_place(_broadcast, True), "broadcast_async_")


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
    communicator: Optional[Communicator] = None,
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


def _reducescatter(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    op: OpLike = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    communicator: Optional[Communicator] = None,
) -> Submission[torch.Tensor]:
    kind = parse_op(op, "reducescatter")

    def operation(tensors: Tensors) -> Operation[torch.Tensor]:
        return _operations.reducescatter(tensors[0], kind, prescale_factor, postscale_factor)

    return Submission(operation, [tensor], Where(process_set, communicator), name)


reducescatter_async = asynchronous(_reducescatter, "reducescatter_async")


# --- all-gather, all-to-all ---


def _allgather(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Optional[Communicator] = None,
) -> Submission[torch.Tensor]:
    where = Where(process_set, communicator)

    def operation(tensors: Tensors) -> Operation[torch.Tensor]:
        return _operations.allgather(tensors[0])

    def backward(gradients: Tensors) -> List[torch.Tensor]:
        return [own_rows(gradients[0], len(tensor), where)]

    return Submission(operation, [tensor], where, name, backward)


allgather = of_new_tensors(
    _allgather,
    "allgather",
    """Return the tensors of all ranks along the first dimension, which may differ by rank. Blocking.

    tensor: of any type; type and other dimensions are the same on all ranks. name, process_set,
    communicator: as for ``allreduce``. The gradient is the average of all ranks' gradients of this rank's rows. Raises
    what ``allreduce`` does.

    >>> everybody = ddl_torch.allgather(tensor)
    """,
    first,
)
allgather_async = asynchronous(_allgather, "allgather_async", SIZES_FIRST)


def own_rows(gradient: torch.Tensor, rows: int, where: Where) -> torch.Tensor:
    """Return the average over ranks of the gradient of the rows that this rank brought to an all-gather."""
    mean = where.run(_operations.allreduce(gradient, Average, 1.0, 1.0, False), None)
    before = where.run(_operations.allgather(torch.tensor([rows])), None)[: where.rank]
    return mean.narrow(0, int(before.sum()), rows)


@naming_rank
def alltoall(
    tensor: torch.Tensor,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Optional[Communicator] = None,
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


def _alltoall(
    tensor: torch.Tensor,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Optional[Communicator] = None,
) -> Submission[Received]:
    where = Where(process_set, communicator)

    def operation(tensors: Tensors) -> Operation[Received]:
        return _operations.alltoall(tensors[0], splits, where.size)

    return Submission(operation, [tensor], where, name)


alltoall_async = asynchronous(_alltoall, "alltoall_async", SIZES_FIRST)


# --- barrier ---


def _barrier(
    process_set: ProcessSet = global_process_set, *, communicator: Optional[Communicator] = None
) -> Submission[None]:
    return Submission(lambda _: _operations.barrier(), [], Where(process_set, communicator))


barrier = blocking(
    _barrier,
    "barrier",
    """Return when every rank of ``process_set`` (default: all), or of ``communicator``, has called it. Blocking.

    Raises ``CollectiveTimeout`` if one does not (DDL_TIMEOUT), ``PeerLost`` if one is lost.

    >>> ddl_torch.barrier()
    """,
)
barrier_async = asynchronous(_barrier, "barrier_async")
