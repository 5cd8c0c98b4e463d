"""Gives every rank the parameters and the optimizer state of one rank: before training, or from a checkpoint."""

from __future__ import annotations

import hashlib
from typing import Any, Iterable, List, Mapping, Optional, Tuple, Union

import torch

import ddl
from ddl_torch._compat import mark_written

__all__ = ["broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    parameters: Union[Mapping[str, torch.Tensor], Iterable[Tuple[str, torch.Tensor]]],
    root: int = 0,
    *,
    communicator: Optional[ddl.Communicator] = None,
) -> None:
    """Overwrite ``parameters`` on every rank with those of rank ``root``, bit by bit. Collective, blocking.

    ``parameters``: ``model.state_dict()`` (parameters and buffers) or ``model.named_parameters()``; names, shapes and
    types must be the same on every rank. Raises ``InvalidArgument``, on all ranks, if they are not.

    >>> ddl_torch.broadcast_parameters(model.state_dict())
    """
    group = ddl.world() if communicator is None else communicator
    pairs = list(parameters.items() if isinstance(parameters, Mapping) else parameters)
    lines = []
    for name, tensor in pairs:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise ddl.InvalidArgument(f"broadcast_parameters: {name!r} is no dense tensor on the CPU: {type(tensor)}")
        lines.append(f"{name!r} {tensor.dtype} of shape {tuple(tensor.shape)}")
    _check_alike(lines, root, group)
    for _, tensor in pairs:
        _broadcast(tensor, root, group)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root: int = 0,
    *,
    allow_pickle: bool = False,
    communicator: Optional[ddl.Communicator] = None,
) -> None:
    """Give the optimizer of every rank the state and the settings of that of rank ``root``. Collective, blocking.

    For every optimizer with ``state_dict`` and ``load_state_dict``; where the root has no state yet, state elsewhere is
    dropped. ``allow_pickle``: as for ``broadcast_object``, for settings that are not plain data. Raises
    ``InvalidArgument``, on all ranks, if the root's settings cannot be sent.
    """
    group = ddl.world() if communicator is None else communicator
    tensors: List[torch.Tensor] = []
    message: Any = None
    if group.rank == root:
        message = {"state": _take_apart(optimizer.state_dict(), tensors)}
    try:
        message = group.broadcast_object(message, root=root, allow_pickle=allow_pickle)
    except ddl.InvalidArgument as error:
        if group.rank != root:
            raise
        # Refused before anything was sent: the others still wait for an answer.
        message = group.broadcast_object({"error": str(error)}, root=root)
    if "error" in message:
        raise ddl.InvalidArgument(f"broadcast_optimizer_state: rank {root}: {message['error']}")
    if group.rank == root:
        for tensor in tensors:
            _broadcast(tensor, root, group)
    else:
        _load(optimizer, _put_together(message["state"], root, group))


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


def _put_together(described: Any, root: int, group: ddl.Communicator) -> Any:
    """Undo ``_take_apart``, receiving the tensors."""
    kind, *rest = described
    if kind == "tensor":
        tensor = torch.empty(rest[1], dtype=getattr(torch, rest[0]))
        _broadcast(tensor, root, group)
        return tensor
    if kind == "dict":
        return {key: _put_together(one, root, group) for key, one in rest[0]}
    if kind == "plain":
        return rest[0]
    values = [_put_together(one, root, group) for one in rest[0]]
    return tuple(values) if kind == "tuple" else values


def _broadcast(tensor: torch.Tensor, root: int, group: ddl.Communicator) -> None:
    """Overwrite a tensor of any type and strides, as bytes."""
    target = tensor.detach()
    dense = target.resolve_conj().resolve_neg().contiguous()
    group.broadcast_(dense.reshape(-1).view(torch.uint8).numpy(), root=root)
    if dense.data_ptr() != target.data_ptr():
        target.copy_(dense)
    mark_written(tensor)


def _check_alike(lines: List[str], root: int, group: ddl.Communicator) -> None:
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    if len(set(group.allgather_object(digest))) == 1:
        return
    everybody: List[List[str]] = group.allgather_object(lines)
    for rank, theirs in enumerate(everybody):
        for i in range(max(len(theirs), len(everybody[root]))):
            one, other = (side[i] if i < len(side) else "nothing" for side in (everybody[root], theirs))
            if one != other:
                raise ddl.InvalidArgument(
                    f"broadcast_parameters: entry {i} is {one} on rank {root} but {other} on rank {rank}; build the "
                    "same model on every rank"
                )
