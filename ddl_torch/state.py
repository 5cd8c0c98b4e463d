"""Gives every rank the parameters and the optimizer state of one rank: before training, or from a checkpoint."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Mapping, Optional, Tuple, Union

import torch

import ddl
from ddl.adapter.consistency import check_consistent
from ddl.adapter.rank_prefix import naming_rank
from ddl_torch._compat import mark_written
from ddl_torch._streams import is_on_gpu
from ddl_torch.optimizer import DistributedOptimizer

__all__ = ["broadcast_optimizer_state", "broadcast_parameters"]


@naming_rank
def broadcast_parameters(
    params: Union[Mapping[str, Any], Iterable[Any]],
    root_rank: int = 0,
    *,
    communicator: Optional[ddl.Communicator] = None,
) -> None:
    """Overwrite ``params`` on every rank with those of rank ``root_rank``, bit by bit. Collective, blocking.

    ``params``: ``model.state_dict()`` (parameters and buffers), ``model.named_parameters()`` or ``model.parameters()``;
    names, shapes and types must be the same on every rank. What is no tensor (None, a module's extra state) cannot be
    overwritten, and stays as it is. Raises ``InvalidArgument``, on all ranks, if names, shapes, types or roots differ,
    or if one of them passes something else, or a tensor that is sparse or neither on the CPU nor on a CUDA GPU.
    ``communicator``: whose ranks, default all.

    >>> ddl_torch.broadcast_parameters(model.state_dict())
    """
    communicator = ddl.world() if communicator is None else communicator
    pairs, mistake = _named_tensors(params)
    lines = [f"{name!r} {tensor.dtype} of shape {tuple(tensor.shape)}" for name, tensor in pairs]
    _check_call("broadcast_parameters", root_rank, lines, mistake, communicator)
    for _, tensor in pairs:
        _broadcast(tensor, root_rank, communicator)


def _named_tensors(params: Any) -> Tuple[List[Tuple[str, torch.Tensor]], str]:
    """Return the tensors in ``params`` with their names; and what is wrong with them, or an empty text."""
    wanted = "pass model.state_dict(), model.named_parameters() or model.parameters()"
    if isinstance(params, torch.nn.Module) or not isinstance(params, Iterable):
        return [], f"params is a {type(params).__name__}; {wanted}"
    given = list(params.items() if isinstance(params, Mapping) else params)
    named = [entry if isinstance(entry, tuple) else (f"number {i}", entry) for i, entry in enumerate(given)]
    if any(len(entry) != 2 for entry in named):
        return [], f"params has a tuple that is no pair (name, tensor); {wanted}"
    pairs = [(name, tensor) for name, tensor in named if isinstance(tensor, torch.Tensor)]
    for name, tensor in pairs:
        if not (tensor.is_cpu or is_on_gpu(tensor)) or tensor.layout != torch.strided:
            return [], f"{name!r} is no dense tensor on the CPU or on a CUDA GPU: {tensor.layout} on {tensor.device}"
    return pairs, ""


def _check_call(verb: str, root_rank: int, lines: List[str], mistake: str, communicator: ddl.Communicator) -> None:
    """Raise ``InvalidArgument``, on all ranks, for what one of them cannot do, or what they do not do alike."""
    if not mistake and root_rank not in range(communicator.size):
        mistake = f"root_rank={root_rank!r} is no rank of a communicator of {communicator.size}"
    advice = "Make the same call, for the same model, on every rank"
    check_consistent(communicator, verb, [f"root_rank={root_rank}", *lines], advice, mistake)


@naming_rank
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
    root's settings cannot be sent, ranks differ in ``root_rank`` or ``allow_pickle``, or the model of one lacks some.
    ``communicator``: whose ranks, default all.

    >>> ddl_torch.broadcast_optimizer_state(optimizer, 0)
    """
    communicator = ddl.world() if communicator is None else communicator
    verb = "broadcast_optimizer_state"
    _check_call(verb, root_rank, [f"allow_pickle={allow_pickle}"], _what_lacks(model, optimizer), communicator)
    own = optimizer.state_dict() if communicator.rank == root_rank else None
    state = broadcast_state(own, root_rank, allow_pickle=allow_pickle, communicator=communicator)
    if communicator.rank != root_rank:
        _load(optimizer, state)
    elif isinstance(optimizer, DistributedOptimizer):
        optimizer._ddl.restart()  # as load_state_dict does on the other ranks


def broadcast_state(
    state: Any, root_rank: int, *, allow_pickle: bool = False, communicator: Optional[ddl.Communicator] = None
) -> Any:
    """Return ``state`` of ``root_rank``: plain data with tensors in it, on the CPU elsewhere. Collective, blocking."""
    communicator = ddl.world() if communicator is None else communicator
    is_root = communicator.rank == root_rank
    tensors: List[torch.Tensor] = []
    described = _take_apart(state, tensors) if is_root else None
    described = communicator.broadcast_object(described, root=root_rank, allow_pickle=allow_pickle)

    def received(shape: List[int], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        _broadcast(tensor, root_rank, communicator)
        return tensor

    if not is_root:
        return _put_together(described, received)
    for tensor in tensors:
        _broadcast(tensor, root_rank, communicator)
    return state


def _what_lacks(model: Optional[torch.nn.Module], optimizer: torch.optim.Optimizer) -> str:
    """Return which of the optimizer's parameters a model that is given lacks, or an empty text."""
    if model is None:
        return ""
    having = {id(parameter) for parameter in model.parameters()}
    lacking = [parameter for parameter in parameters_of(optimizer) if id(parameter) not in having]
    if not lacking:
        return ""
    return (
        f"the model lacks {len(lacking)} of the optimizer's parameters, one of shape {tuple(lacking[0].shape)}; pass "
        "the model that the optimizer trains, or none"
    )


def _load(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Load a state dictionary exactly: ``load_state_dict`` alone casts state to the type of its parameter."""
    optimizer.load_state_dict(state)
    own = parameters_of(optimizer)
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for parameter, number in zip(own, numbers):
        if number in state["state"]:
            optimizer.state[parameter] = _where_it_is(state["state"][number], optimizer.state[parameter])


def _where_it_is(exact: Any, loaded: Any) -> Any:
    """Return ``exact`` with each tensor on the device to which torch has loaded it: mostly that of its parameter."""
    if isinstance(exact, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return exact.to(loaded.device)
    if isinstance(exact, dict) and isinstance(loaded, dict):
        return {key: _where_it_is(value, loaded.get(key)) for key, value in exact.items()}
    if isinstance(exact, (list, tuple)) and isinstance(loaded, (list, tuple)):
        return type(exact)(_where_it_is(*pair) for pair in zip(exact, loaded))
    return exact


def _take_apart(value: Any, tensors: List[torch.Tensor]) -> Any:
    """Return ``value`` with each tensor replaced by its type and shape; append the tensors in the order met."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return ("tensor", str(value.dtype).split(".")[-1], list(value.shape))
    if isinstance(value, dict):
        return ("dict", [(key, _take_apart(part, tensors)) for key, part in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [_take_apart(part, tensors) for part in value])
    return ("plain", value)


def _put_together(described: Any, tensor: Callable[[List[int], torch.dtype], torch.Tensor]) -> Any:
    """Undo ``_take_apart``; ``tensor`` returns the next one, of a shape and type."""
    kind, *rest = described
    if kind == "tensor":
        return tensor(rest[1], getattr(torch, rest[0]))
    if kind == "dict":
        return {key: _put_together(part, tensor) for key, part in rest[0]}
    if kind == "plain":
        return rest[0]
    values = [_put_together(part, tensor) for part in rest[0]]
    return tuple(values) if kind == "tuple" else values


def _broadcast(tensor: torch.Tensor, root_rank: int, communicator: ddl.Communicator) -> None:
    """Overwrite a tensor of any type and strides, as bytes."""
    target = tensor.detach()
    dense = target.resolve_conj().resolve_neg().contiguous()
    communicator.broadcast_(as_bytes(dense), root=root_rank)
    if dense.data_ptr() != target.data_ptr():
        target.copy_(dense)
    mark_written(tensor)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in their order (uint8, one axis): its own memory, or a copy where it has gaps."""
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def parameters_of(optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    """Return what an optimizer trains, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
