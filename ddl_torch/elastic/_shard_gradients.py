"""``ShardGradients``: the gradients of the shards of a step, one after another, and at its end the average of all.

The gradients of a shard are copied to a flat tensor for each type that is added: float64 where the parameters have that
precision, else float32, to which 16-bit types are widened. They are rounded once, when ``p.grad`` becomes the average.
Behind them lies a flag for each parameter: 1 if the shard has used it. One that no shard has used keeps ``p.grad``
None, so that momentum and weight decay leave it alone, for any number of ranks.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

import torch

import ddl
from ddl.adapter.virtual_shards import VirtualSum
from ddl_torch.state import parameters_of

__all__ = ["ShardGradients"]

_WIDE = (torch.float64, torch.complex128)


class ShardGradients:
    """The gradients of the parameters that ``optimizer`` trains. Used by the thread that runs the backward passes.

    keeps: those of each shard are kept until the next step, so that they can be added again with other ranks.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, keeps: bool) -> None:
        self._optimizer = optimizer
        self._keeps = keeps
        self._kept: Dict[int, Dict[torch.dtype, torch.Tensor]] = {}  # by shard
        self._groups: Dict[torch.dtype, List[torch.Tensor]] = {}  # the parameters, by the type in which they are added
        self._sums: Dict[torch.dtype, VirtualSum] = {}
        self._made_for: Tuple[object, ...] = ()  # the ranks, owners and parameters of ``_sums``
        self._ended = False  # the sums have ended with an average, so that they can be used again

    @property
    def kept(self) -> Tuple[int, ...]:
        """The shards of this step whose gradients are here."""
        return tuple(self._kept)

    def forget(self) -> None:
        """Begin another step."""
        self._kept.clear()

    def begin(self, communicator: ddl.Communicator, owners: Sequence[int]) -> None:
        """Add up from the beginning what is kept, and what comes: ``owners[v]`` is the rank that has shard v."""
        if not self._kept:
            self._groups = {}
            for parameter in parameters_of(self._optimizer):
                if parameter.requires_grad:
                    dtype = torch.float64 if parameter.dtype in _WIDE else torch.float32
                    self._groups.setdefault(dtype, []).append(parameter)
        made_for = (communicator, tuple(owners), {dtype: list(map(id, group)) for dtype, group in self._groups.items()})
        if not self._ended or self._made_for != made_for:
            self._sums = {dtype: VirtualSum(communicator, len(owners), owners=owners) for dtype in self._groups}
        self._made_for, self._ended = made_for, False
        for shard, flats in self._kept.items():
            self._add(shard, flats)
        self.drop()

    def take(self, shard: int) -> None:
        """Take the gradients of ``shard``; ``p.grad`` is None afterwards. ``InvalidState`` where there are none."""
        if all(parameter.grad is None for parameter in parameters_of(self._optimizer)):
            raise ddl.InvalidState(
                f"shard {shard} has brought no gradient: call backward() inside the loop over the shards of a step, "
                "once for each"
            )
        flats = {dtype: _flat(parameters, dtype) for dtype, parameters in self._groups.items()}
        self._add(shard, flats)
        if self._keeps:
            self._kept[shard] = flats
        self.drop()

    def _add(self, shard: int, flats: Dict[torch.dtype, torch.Tensor]) -> None:
        for dtype, flat in flats.items():
            self._sums[dtype].add(shard, flat)

    def average(self) -> None:
        """Let each ``p.grad`` be the average over all shards. Collective, blocking. Raises as ``VirtualSum`` does."""
        averages = {dtype: torch.from_numpy(total.average()) for dtype, total in self._sums.items()}
        self._ended = True
        for dtype, parameters in self._groups.items():
            flat = averages[dtype]
            offset, flags = 0, flat[-len(parameters) :].tolist()
            for parameter, flag in zip(parameters, flags):
                end = offset + parameter.numel() * (2 if parameter.is_complex() else 1)
                if flag:
                    parameter.grad = torch.empty_like(parameter)
                    numbers = _numbers(parameter.grad)
                    numbers.copy_(flat[offset:end].view(numbers.shape))
                offset = end

    def drop(self) -> None:
        """Let each ``p.grad`` be None."""
        for parameter in parameters_of(self._optimizer):
            parameter.grad = None


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return it as a tensor of real numbers that shares its memory."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _flat(parameters: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return the gradients one behind another, with zeros where there are none, and the flags; on the CPU."""
    if any(parameter.grad is not None and parameter.grad.layout != torch.strided for parameter in parameters):
        raise ddl.InvalidState("gradients of shards must be dense; use Embedding(sparse=False)")
    parts = []
    for parameter in parameters:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parts.append(_numbers(gradient.detach().resolve_conj()).reshape(-1).to("cpu", dtype))
    parts.append(torch.tensor([parameter.grad is not None for parameter in parameters], dtype=dtype))
    return torch.cat(parts)
