"""``SyncBatchNorm``: batch normalisation over the batches of all ranks, as if one process had the whole batch."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

import ddl

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """Normalise each channel by its mean and variance over the batches of all ranks. A ``torch.nn.BatchNorm*d``.

    For inputs of shape (batch, num_features, ...), of any number of further dimensions. Batches may differ in size by
    rank, down to none at all. In training, ``forward`` makes two small all-reduces and ``backward`` makes one: all are
    collective, so every rank runs the layer equally often, in the same order. In ``eval`` nothing is sent.

    The gradients of weight and bias are those of this rank's batch; ``DistributedOptimizer`` averages them like all
    others. communicator: whose ranks to normalise over, default ``ddl.world()``; give a ``split`` of its own to a model
    whose graph differs by rank. Raises ``ValueError``, on all ranks, if all together have only one value per channel.

    >>> layer = ddl_torch.SyncBatchNorm(64)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: Optional[float] = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        communicator: Optional[ddl.Communicator] = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.communicator = communicator

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, communicator: Optional[ddl.Communicator] = None
    ) -> torch.nn.Module:
        """Return ``module`` with each ``torch.nn.BatchNorm*d`` in it replaced by one of these, which takes over its
        parameters and statistics. Not collective.

        >>> model = ddl_torch.SyncBatchNorm.convert_sync_batchnorm(model)
        """
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            new = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                communicator=communicator,
            )
            for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                setattr(new, name, value)
            return new.train(module.training)
        for name, child in module.named_children():
            setattr(module, name, cls.convert_sync_batchnorm(child, communicator))
        return module

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm({self.num_features}): the input has shape {tuple(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        communicator = ddl.world() if self.communicator is None else self.communicator
        if not self.training or communicator.size == 1:
            return super().forward(input)
        self._check_input_dim(input)
        values = input.detach().to(_wide(input))
        mean, variance, count = _moments(values, communicator)
        if self.track_running_stats:
            self._track(mean, variance * (count / (count - 1)))
        inverse = torch.rsqrt(variance + self.eps)
        apply: Callable[..., torch.Tensor] = _Normalise.apply
        return apply(input, self.weight, self.bias, mean, inverse, count, communicator)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.num_batches_tracked is not None and self.running_mean is not None and self.running_var is not None
        self.num_batches_tracked.add_(1)
        new = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        for running, value in ((self.running_mean, mean), (self.running_var, variance)):
            running.mul_(1 - new).add_(value.to(running.dtype), alpha=new)


class _Normalise(torch.autograd.Function):
    """(x - mean) * inverse * weight + bias, where mean and inverse (deviation) came from the x of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: Optional[torch.Tensor],
        bias: Optional[torch.Tensor],
        mean: torch.Tensor,
        inverse: torch.Tensor,
        count: float,
        communicator: ddl.Communicator,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.count, ctx.communicator = count, communicator
        shape = _along_channels(x)
        output = (x.to(_wide(x)) - mean.view(shape)) * inverse.view(shape)
        if weight is not None and bias is not None:
            output = output * weight.view(shape) + bias.view(shape)
        return output.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        shape = _along_channels(x)
        gradient = given.to(_wide(x))
        normal = (x.to(_wide(x)) - mean.view(shape)) * inverse.view(shape)
        sums = torch.stack([_per_channel(gradient), _per_channel(gradient * normal)])
        # Each value moved the mean and the deviation of all ranks' values.
        of_all = _sum(sums, ctx.communicator) / ctx.count
        scale = inverse if weight is None else inverse * weight
        to_input = (gradient - of_all[0].view(shape) - normal * of_all[1].view(shape)) * scale.view(shape)
        if weight is None:
            return to_input.to(x.dtype), *(None,) * 6
        bias_gradient, weight_gradient = sums.to(weight.dtype)
        return to_input.to(x.dtype), weight_gradient, bias_gradient, *(None,) * 4


def _wide(x: torch.Tensor) -> torch.dtype:
    """What is added up in: 16 bits are too few."""
    return torch.promote_types(x.dtype, torch.float32)


def _along_channels(x: torch.Tensor) -> Tuple[int, ...]:
    return (1, -1, *(1,) * (x.dim() - 2))


def _per_channel(x: torch.Tensor) -> torch.Tensor:
    return x.sum([0, *range(2, x.dim())])


def _moments(x: torch.Tensor, communicator: ddl.Communicator) -> Tuple[torch.Tensor, torch.Tensor, float]:
    """Return mean and variance of each channel of all ranks' ``x``, and how many values it has. Collective.

    The variance comes from a second pass: a difference of two large sums would cancel out.
    """
    own = torch.tensor([x.numel() // x.shape[1]], dtype=torch.float64, device=x.device)
    sums = _sum(torch.cat([own, _per_channel(x).double()]), communicator)
    count = sums[0].item()
    if count < 2:
        raise ValueError(f"SyncBatchNorm: in training, more than {count:g} value per channel is needed over all ranks")
    mean = (sums[1:] / count).to(x.dtype)
    variance = _sum(_per_channel((x - mean.view(_along_channels(x))).square()).double(), communicator) / count
    return mean, variance.to(x.dtype), count


def _sum(x: torch.Tensor, communicator: ddl.Communicator) -> torch.Tensor:
    """Return the sum of all ranks' ``x``, the same bits on every rank. Collective, blocking."""
    total = x.detach().contiguous().clone()
    communicator.allreduce_(total, op=ddl.Sum)
    return total
