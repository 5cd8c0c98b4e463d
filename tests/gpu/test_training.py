"""Training on ranks comes to what one process comes to: DDP over "ddl", and the optimizer of ``ddl_torch``."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, List, Optional

import pytest
import ranks
import torch
from gpu.jobs import device, environment, group, settle, side_stream
from torch_training import F64, linear

import ddl
import ddl_torch

pytestmark = pytest.mark.processes
STEPS, ROWS = 6, 24


def network() -> torch.nn.Module:
    return linear(10, 200, 300, 50, 1).to(device())


def batch(step: int, rank: int, size: int) -> torch.Tensor:
    whole = torch.randn(ROWS, 10, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return whole[rank * ROWS // size : (rank + 1) * ROWS // size].to(device())


def trained(model: Any, optimizer: Any, rank: int, size: int) -> List[torch.Tensor]:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step, rank, size)).square().mean().backward()
        optimizer.step()
    settle()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def compare(weights: List[torch.Tensor]) -> None:
    """Assert that they are those of one process with all data."""
    model = network()
    for own, expected in zip(weights, trained(model, sgd(model), 0, 1)):
        torch.testing.assert_close(own, expected, **F64)


def with_ddp(aside: bool, view: bool, cap: Optional[float]) -> None:
    dist, rank, size = group()
    with side_stream() if aside else contextlib.nullcontext():
        options = {} if cap is None else {"bucket_cap_mb": cap}
        model = torch.nn.parallel.DistributedDataParallel(network(), gradient_as_bucket_view=view, **options)
        compare(trained(model, sgd(model), rank, size))
    dist.destroy_process_group()


@pytest.mark.parametrize("view", [False, True], ids=["copies", "views"])
@pytest.mark.parametrize("aside", [False, True], ids=["default stream", "side stream"])
def test_ddp(aside: bool, view: bool) -> None:
    ranks.run(2, with_ddp, aside, view, None, env=environment())


def test_ddp_of_many_buckets_on_four_ranks() -> None:
    ranks.run(4, with_ddp, True, True, 0.05, env=environment())


def with_optimizer(aside: bool) -> None:
    with side_stream() if aside else contextlib.nullcontext():
        model = network()
        ddl_torch.broadcast_parameters(model.state_dict())
        optimizer = ddl_torch.DistributedOptimizer(sgd(model), model.named_parameters())
        compare(trained(model, optimizer, ddl.rank(), ddl.size()))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("aside", [False, True], ids=["default stream", "side stream"])
def test_the_optimizer(aside: bool, size: int) -> None:
    ranks.run(size, with_optimizer, aside, env=environment())


def forward_on_two_streams() -> None:
    """Gradients of a bucket come on the streams of their layers' forward pass."""
    first, second = linear(10, 100).to(device()), linear(100, 30).to(device())
    both = torch.nn.Sequential(*first, *second)
    optimizer = ddl_torch.DistributedOptimizer(sgd(both), both.named_parameters())
    whole: Callable[[int, int, int], torch.Tensor] = batch
    for step in range(STEPS):
        optimizer.zero_grad()
        hidden = first(whole(step, ddl.rank(), ddl.size()))
        with side_stream():
            loss = second(hidden).square().mean()
        if device().type == "cuda":
            torch.cuda.current_stream().synchronize()
        settle()
        loss.backward()
        optimizer.step()
    settle()
    weights = torch.cat([parameter.detach().ravel().cpu() for parameter in both.parameters()])
    everybody = ddl_torch.allgather(weights[None])
    assert torch.equal(everybody[0], everybody[-1])


def test_gradients_of_two_streams() -> None:
    ranks.run(2, forward_on_two_streams, env=environment())
