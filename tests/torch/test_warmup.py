"""The learning rate goes linearly from one rank's to all ranks', composes with torch's schedulers, and resumes."""

from __future__ import annotations

import copy
import math

import pytest
import ranks

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR of older PyTorch uses it itself
STEPS, WARMUP, FACTOR = 20, 5, 8
EXACT = {"rel": 1e-12}


def optimizer_of(*rates):
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=1.0)


def warmup(optimizer):
    from ddl_torch import LinearScalingWarmup

    return LinearScalingWarmup(optimizer, WARMUP, factor=FACTOR)


def sequential(optimizer):
    schedulers = [warmup(optimizer), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - WARMUP)]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, schedulers, [WARMUP])


def chained(optimizer):
    schedulers = [warmup(optimizer), torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 10], gamma=0.1)]
    return torch.optim.lr_scheduler.ChainedScheduler(schedulers)


def ramp(step):
    return 1 + (FACTOR - 1) * min(step / WARMUP, 1)


SCHEDULES = {
    warmup: ramp,
    sequential: lambda t: (
        ramp(t) * (1 if t < WARMUP else (1 + math.cos(math.pi * (t - WARMUP) / (STEPS - WARMUP))) / 2)
    ),
    chained: lambda t: ramp(t) * 0.1 ** ((t >= 3) + (t >= 10)),
}


def follow(optimizer, scheduler, steps):
    """Return the rates of all groups, before the first step and after each."""
    rates = [[group["lr"] for group in optimizer.param_groups]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
    return rates


@pytest.mark.parametrize("make", SCHEDULES)
def test_rates_of_every_group_follow_the_formula(make):
    bases = (0.1, 0.3)
    optimizer = optimizer_of(*bases)
    rates = follow(optimizer, make(optimizer), STEPS - 1)
    expected = [[base * SCHEDULES[make](t) for base in bases] for t in range(STEPS)]
    assert rates == [pytest.approx(row, **EXACT) for row in expected]


@pytest.mark.parametrize("make", SCHEDULES)
@pytest.mark.parametrize("stop", [0, 2, WARMUP, 12])
def test_a_resumed_schedule_goes_on_to_the_bit(make, stop):
    optimizer = optimizer_of(0.1, 0.3)
    scheduler = make(optimizer)
    follow(optimizer, scheduler, stop)
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    expected = follow(optimizer, scheduler, STEPS - stop - 1)

    optimizer = optimizer_of(7.0, 7.0)
    scheduler = make(optimizer)
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    assert follow(optimizer, scheduler, STEPS - stop - 1) == expected


def test_a_rate_that_is_a_tensor_is_scaled_where_it_is():
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=rate, foreach=False)
    scheduler = warmup(optimizer)
    assert follow(optimizer, scheduler, WARMUP)[0][0] is rate
    assert rate.item() == pytest.approx(0.5 * FACTOR)


def test_mistakes_are_refused():
    from ddl_torch import InvalidArgument, LinearScalingWarmup

    optimizer = optimizer_of(0.1)
    for options, message in (
        ({"warmup_steps": 0}, "warmup_steps=0"),
        ({"warmup_steps": 2.5}, "warmup_steps=2.5"),
        ({"warmup_steps": 5, "factor": 0.5}, "factor=0.5"),
        ({"warmup_steps": 5, "factor": math.nan}, "factor=nan"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            LinearScalingWarmup(optimizer, **{"factor": 2, **options})
    assert optimizer.param_groups[0]["lr"] == 0.1
    torch.optim.lr_scheduler.StepLR(optimizer, 3)
    with pytest.raises(InvalidArgument, match="before other schedulers"):
        warmup(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1


def wrapped_before_or_after():
    import ddl_torch as ddl

    for wrap_first in (True, False):
        optimizer = optimizer_of(0.1, 0.3)
        if wrap_first:
            optimizer = ddl.DistributedOptimizer(optimizer)
        scheduler = ddl.LinearScalingWarmup(optimizer, 2)
        if not wrap_first:
            optimizer = ddl.DistributedOptimizer(optimizer)
        for expected in (1, (1 + ddl.size()) / 2, ddl.size(), ddl.size()):
            assert scheduler.get_last_lr() == pytest.approx([0.1 * expected, 0.3 * expected], **EXACT)
            (first,), (second,) = (group["params"] for group in optimizer.param_groups)
            before = first.detach().clone()
            (first.sum() + second.sum()).backward()
            optimizer.step()
            assert torch.allclose(before - first.detach(), torch.tensor(0.1 * expected))
            scheduler.step()
            optimizer.zero_grad()
    return optimizer.statistics()["steps"]


@pytest.mark.processes
def test_the_factor_is_the_number_of_ranks_and_the_optimizer_may_be_distributed():
    assert ranks.run(2, wrapped_before_or_after, env={"OMP_NUM_THREADS": "1"}) == [4, 4]
