"""Gives every rank the parameters and the optimizer state of one rank: before training, or from a checkpoint."""

from __future__ import annotations

import hashlib
from typing import Any, Iterable, List, Mapping, Optional, Union

import torch

import ddl
from ddl_torch._compat import mark_written

__all__ = ["broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    params: Union[Mapping[str, Any], Iterable[Any]],
    root_rank: int = 0,
    *,
    communicator: Optional[ddl.Communicator] = None,
) -> None:
    """Overwrite ``params`` on every rank with those of rank ``root_rank``, bit by bit. Collective, blocking.

    ``params``: ``model.state_dict()`` (parameters and buffers), ``model.named_parameters()`` or ``model.parameters()``;
    names, shapes and types must be the same on every rank. What is no tensor (None, a module's extra state) cannot be
    overwritten, and stays as it is. Raises ``InvalidArgument``, on all ranks, if names, shapes or types differ.

    >>> ddl_torch.broadcast_parameters(model.state_dict())
    """
    group = ddl.world() if communicator is None else communicator
    given = list(params.items() if isinstance(params, Mapping) else params)
    named = [one if isinstance(one, tuple) else (f"number {i}", one) for i, one in enumerate(given)]
    pairs = [(name, tensor) for name, tensor in named if isinstance(tensor, torch.Tensor)]
    lines = []
    for name, tensor in pairs:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise ddl.InvalidArgument(
                f"broadcast_parameters: {name!r} is no dense tensor on the CPU: {tensor.layout} on {tensor.device}"
            )
        lines.append(f"{name!r} {tensor.dtype} of shape {tuple(tensor.shape)}")
    _check_alike(lines, root_rank, group)
    for _, tensor in pairs:
        _broadcast(tensor, root_rank, group)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    model: Optional[torch.nn.Module] = None,
    *,
    allow_pickle: bool = False,
    communicator: Optional[ddl.Communicator] = None,
) -> None:
    """Give the optimizer of every rank the state and the settings of that of rank ``root_rank``. Collective, blocking.

    For every optimizer with ``state_dict`` and ``load_state_dict``; where the root has no state yet, state elsewhere is
    dropped. ``model``: not needed; one that is given must have all parameters of the optimizer. ``allow_pickle``: as
    for ``broadcast_object``, for settings that are not plain data. Raises ``InvalidArgument``, on all ranks, if the
    root's settings cannot be sent.
    """
    if model is not None:
        having = {id(parameter) for parameter in model.parameters()}
        lacking = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in having]
        if lacking:
            raise ddl.InvalidArgument(
                f"broadcast_optimizer_state: the model lacks {len(lacking)} of the optimizer's parameters, one of "
                f"shape {tuple(lacking[0].shape)}; pass the model that the optimizer trains, or none"
            )
    group = ddl.world() if communicator is None else communicator
    tensors: List[torch.Tensor] = []
    message: Any = None
    if group.rank == root_rank:
        message = {"state": _take_apart(optimizer.state_dict(), tensors)}
    try:
        message = group.broadcast_object(message, root=root_rank, allow_pickle=allow_pickle)
    except ddl.InvalidArgument as error:
        if group.rank != root_rank:
            raise
        # Refused before anything was sent: the others still wait for an answer.
        message = group.broadcast_object({"error": str(error)}, root=root_rank)
    if "error" in message:
        raise ddl.InvalidArgument(f"broadcast_optimizer_state: rank {root_rank}: {message['error']}")
    if group.rank == root_rank:
        for tensor in tensors:
            _broadcast(tensor, root_rank, group)
    else:
        _load(optimizer, _put_together(message["state"], root_rank, group))


def _load(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Load a state dictionary exactly: ``load_state_dict`` alone casts state to the type of its parameter."""
    optimizer.load_state_dict(state)
    own = [parameter for one in optimizer.param_groups for parameter in one["params"]]
    numbers = [number for one in state["param_groups"] for number in one["params"]]
    for parameter, number in zip(own, numbers):
        if number in state["state"]:
            optimizer.state[parameter] = state["state"][number]


def _take_apart(value: Any, tensors: List[torch.Tensor]) -> Any:
    """Return ``value`` with each tensor replaced by its type and shape; append the tensors in the order met."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return ("tensor", str(value.dtype).split(".")[-1], list(value.shape))
    if isinstance(value, dict):
        return ("dict", [(key, _take_apart(one, tensors)) for key, one in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [_take_apart(one, tensors) for one in value])
    return ("plain", value)


def _put_together(described: Any, root_rank: int, group: ddl.Communicator) -> Any:
    """Undo ``_take_apart``, receiving the tensors."""
    kind, *rest = described
    if kind == "tensor":
        tensor = torch.empty(rest[1], dtype=getattr(torch, rest[0]))
        _broadcast(tensor, root_rank, group)
        return tensor
    if kind == "dict":
        return {key: _put_together(one, root_rank, group) for key, one in rest[0]}
    if kind == "plain":
        return rest[0]
    values = [_put_together(one, root_rank, group) for one in rest[0]]
    return tuple(values) if kind == "tuple" else values


def _broadcast(tensor: torch.Tensor, root_rank: int, group: ddl.Communicator) -> None:
    """Overwrite a tensor of any type and strides, as bytes."""
    target = tensor.detach()
    dense = target.resolve_conj().resolve_neg().contiguous()
    group.broadcast_(dense.reshape(-1).view(torch.uint8).numpy(), root=root_rank)
    if dense.data_ptr() != target.data_ptr():
        target.copy_(dense)
    mark_written(tensor)


def _check_alike(lines: List[str], root_rank: int, group: ddl.Communicator) -> None:
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    if len(set(group.allgather_object(digest))) == 1:
        return
    everybody: List[List[str]] = group.allgather_object(lines)
    for rank, theirs in enumerate(everybody):
        for i in range(max(len(theirs), len(everybody[root_rank]))):
            one, other = (side[i] if i < len(side) else "nothing" for side in (everybody[root_rank], theirs))
            if one != other:
                raise ddl.InvalidArgument(
                    f"broadcast_parameters: entry {i} is {one} on rank {root_rank} but {other} on rank {rank}; build "
                    "the same model on every rank"
                )
