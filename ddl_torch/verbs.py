"""The collectives of Horovod on tensors on the CPU, each for one tensor; ``grouped.py`` has those for several.

Ranks may submit them in any order. One with a ``name`` runs when all ranks of the process set have submitted that
name; those without are paired in the order in which each rank submits them. Where ranks submit different things under
one name, all of them get ``CollectiveMismatch`` and nothing is sent. With ``communicator`` nothing is agreed on: all
its ranks make the same calls in the same order, at less cost.

The blocking verbs that return new tensors are differentiable. Verbs with a trailing underscore write their tensor,
which must be contiguous. Those with ``_async`` return a ``Work`` at once, which ``poll`` and ``synchronize`` take, too;
until it is done, its tensor must not be touched. ``root_rank`` is a rank of the job, or of ``communicator``.
"""

from __future__ import annotations

import warnings
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch

import ddl
from ddl import Average, Communicator, ReduceOp
from ddl.negotiation import Signature
from ddl.process_sets import ProcessSet
from ddl_torch import _operations
from ddl_torch._differentiable import differentiable
from ddl_torch._tensors import Work
from ddl_torch._where import Where, global_process_set
from ddl_torch.compression import Compression, casting

__all__ = [
    *("allreduce", "allreduce_", "allreduce_async", "allreduce_async_"),
    *("broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object", "allgather_object"),
    *("reducescatter", "reducescatter_async", "allgather", "allgather_async", "alltoall", "alltoall_async"),
    *("barrier", "barrier_async"),
]

Group = Optional[Communicator]
Received = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]


def choose_op(average: Optional[bool], op: Optional[ReduceOp]) -> ReduceOp:
    """Return the operator of Horovod's two arguments for it."""
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ddl.InvalidArgument("average= and op= cannot both be given; use op=")
    warnings.warn("average= is deprecated; use op=Average or op=Sum", DeprecationWarning, stacklevel=3)
    return Average if average else ddl.Sum


# --- all-reduce ---


def allreduce(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """Combine ``tensor`` over all ranks (default: average); return the result, the same bits on every rank. Blocking.

    ``tensor`` is multiplied by ``prescale_factor`` before and the result by ``postscale_factor``; integers as float64,
    truncated. ``compression``: how it is written meanwhile. ``average`` is Horovod's old name of ``op``.

    >>> mean = ddl_torch.allreduce(tensor)
    """
    kind = choose_op(average, op)
    where, cast = Where(process_set, communicator), casting(compression)

    def run(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        small, context = cast.compress(tensors[0])
        operation = _operations.allreduce(small, kind, prescale_factor, postscale_factor, False)
        return [cast.decompress(where.run(operation, name), context)]

    def back(gradients: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        operation = _operations.allreduce(gradients[0], kind, prescale_factor, postscale_factor, False)
        return [where.run(operation, None)]

    return differentiable(run, back, [tensor])[0]


def allreduce_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """As ``allreduce``, in place."""
    operation = _operations.allreduce(tensor, choose_op(average, op), prescale_factor, postscale_factor, True)
    return Where(process_set, communicator).run(operation, name)


def allreduce_async(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``allreduce``, without blocking."""
    operation = _operations.allreduce(tensor, choose_op(average, op), prescale_factor, postscale_factor, False)
    return Where(process_set, communicator).start(operation, name)


def allreduce_async_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``allreduce_``, without blocking."""
    operation = _operations.allreduce(tensor, choose_op(average, op), prescale_factor, postscale_factor, True)
    return Where(process_set, communicator).start(operation, name)


# --- broadcast ---


def _broadcast(tensor: torch.Tensor, root_rank: int, where: Where, in_place: bool) -> Any:
    return _operations.broadcast(tensor, where.index(root_rank), str(root_rank), in_place)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """Return a new tensor with the contents of ``tensor`` of ``root_rank``; shapes and types are equal. Blocking.

    The gradient is the average of all ranks' gradients on ``root_rank``, zero elsewhere.
    """
    where = Where(process_set, communicator)

    def run(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return [where.run(_broadcast(tensors[0], root_rank, where, False), name)]

    def back(gradients: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        mean = where.run(_operations.allreduce(gradients[0], Average, 1.0, 1.0, False), None)
        return [mean if where.rank == where.index(root_rank) else mean.zero_()]

    return differentiable(run, back, [tensor])[0]


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """As ``broadcast``, in place."""
    where = Where(process_set, communicator)
    result: torch.Tensor = where.run(_broadcast(tensor, root_rank, where, True), name)
    return result


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``broadcast``, without blocking."""
    where = Where(process_set, communicator)
    return where.start(_broadcast(tensor, root_rank, where, False), name)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``broadcast_``, without blocking."""
    where = Where(process_set, communicator)
    return where.start(_broadcast(tensor, root_rank, where, True), name)


# --- reduce-scatter ---


def reducescatter(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """Combine ``tensor`` over all ranks; return this rank's share of the rows. Blocking.

    Where the rows do not divide by the number of ranks, the first ranks get one more. The gradient is all ranks'
    gradients of their rows; for a sum, times the number of ranks (as in Horovod).
    """
    where, cast = Where(process_set, communicator), casting(compression)

    def run(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        small, context = cast.compress(tensors[0])
        operation = _operations.reducescatter(small, op, prescale_factor, postscale_factor)
        return [cast.decompress(where.run(operation, name), context)]

    def back(gradients: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        factor = prescale_factor * postscale_factor * (where.size if op == ddl.Sum else 1)
        return [where.run(_operations.allgather(gradients[0] * factor), None)]

    return differentiable(run, back, [tensor])[0]


def reducescatter_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``reducescatter``, without blocking."""
    operation = _operations.reducescatter(tensor, op, prescale_factor, postscale_factor)
    return Where(process_set, communicator).start(operation, name)


# --- all-gather, all-to-all ---


def allgather(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> torch.Tensor:
    """Return the tensors of all ranks along the first dimension, which may differ by rank. Blocking.

    The gradient is the average of all ranks' gradients of this rank's rows.
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


def allgather_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[torch.Tensor]:
    """As ``allgather``, without blocking; with ``communicator``, sizes are exchanged before it returns."""
    return Where(process_set, communicator).start(_operations.allgather(tensor), name)


def alltoall(
    tensor: torch.Tensor,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Received:
    """Send ``splits[r]`` rows (default: an equal share) to each rank ``r``; return the rows received. Blocking.

    With ``splits`` (numbers, or a tensor of them), the result is the pair (rows, received splits).
    """
    where = Where(process_set, communicator)
    received: List[torch.Tensor] = []

    def run(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        result = where.run(_operations.alltoall(tensors[0], splits, where.size), name)
        if splits is None:
            return [result]
        received.append(result[1])
        return [result[0]]

    def back(gradients: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        counts = received[0].tolist() if received else [len(gradients[0]) // where.size] * where.size
        return [where.run(_operations.alltoall(gradients[0], counts, where.size), None)[0]]

    rows = differentiable(run, back, [tensor])[0]
    return (rows, received[0]) if received else rows


def alltoall_async(
    tensor: torch.Tensor,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[Received]:
    """As ``alltoall``, without blocking; with ``communicator``, sizes are exchanged before it returns."""
    where = Where(process_set, communicator)
    return where.start(_operations.alltoall(tensor, splits, where.size), name)


# --- objects ---


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool = False,
    communicator: Group = None,
) -> Any:
    """Return the ``obj`` of ``root_rank`` on every rank. Blocking. What is not plain data needs ``allow_pickle``.

    See ``ddl.Communicator.broadcast_object``; Horovod pickles without asking.
    """
    where = Where(process_set, communicator)
    root = where.index(root_rank)
    if where.rank == root:
        ddl.objects.encode(obj, allow_pickle=allow_pickle)  # refused here, before the others wait for it
    operation = _operations.objects(
        Signature("broadcast_object", detail=f"root_rank={root_rank}"),
        lambda group: group.broadcast_object(obj, root=root, allow_pickle=allow_pickle),
    )
    return where.run(operation, name)


def allgather_object(
    obj: Any,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool = False,
    communicator: Group = None,
) -> List[Any]:
    """Return the list of all ranks' ``obj``, in rank order. Blocking. Objects are those of ``broadcast_object``."""
    ddl.objects.encode(obj, allow_pickle=allow_pickle)
    operation = _operations.objects(
        Signature("allgather_object"), lambda group: group.allgather_object(obj, allow_pickle=allow_pickle)
    )
    return Where(process_set, communicator).run(operation, name)


# --- barrier ---


def barrier(process_set: ProcessSet = global_process_set, *, communicator: Group = None) -> None:
    """Return when every rank has called it. Blocking."""
    Where(process_set, communicator).run(_operations.barrier(), None)


def barrier_async(process_set: ProcessSet = global_process_set, *, communicator: Group = None) -> Work[None]:
    """As ``barrier``, without blocking."""
    return Where(process_set, communicator).start(_operations.barrier(), None)
