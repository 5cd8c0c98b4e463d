"""``elastic.ScaledLR``: the learning rate follows the number of ranks that samples are dealt to."""

from __future__ import annotations

import time
from typing import Any, Dict, List

import pytest
import torch
from elastic import elastic_job, pace
from elastic.elastic_job import ElasticJob

import ddl
import ddl_torch

RAMP = 10


def scaled(ranks: int, ramp: int = RAMP) -> Any:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.8)
    batches = ddl_torch.elastic.ElasticBatches(1000, 1, rank=0, size=ranks)
    return optimizer, batches, ddl_torch.elastic.ScaledLR(optimizer, batches, ramp)


def rates(optimizer: torch.optim.Optimizer, schedule: Any, steps: int) -> List[float]:
    seen = []
    for _ in range(steps):
        optimizer.step()
        schedule.step()
        seen.append(optimizer.param_groups[0]["lr"])
    return seen


def test_it_stays_while_ranks_stay() -> None:
    optimizer, _, schedule = scaled(4)
    assert rates(optimizer, schedule, 5) == [0.8] * 5


@pytest.mark.parametrize("ranks, rate", [(3, 0.6), (8, 1.6), (1, 0.2)])
def test_it_goes_in_equal_parts_to_the_rate_of_the_new_number(ranks: int, rate: float) -> None:
    optimizer, batches, schedule = scaled(4)
    batches.regenerate(0, ranks)
    seen = rates(optimizer, schedule, RAMP + 3)
    assert seen[:RAMP] == pytest.approx([0.8 + (rate - 0.8) * (i + 1) / RAMP for i in range(RAMP)])
    assert seen[RAMP - 1 :] == [seen[RAMP - 1]] * 4
    assert schedule.ranks == ranks


def test_it_turns_where_ranks_come_back() -> None:
    optimizer, batches, schedule = scaled(4)
    batches.regenerate(0, 2)
    rates(optimizer, schedule, 4)
    batches.regenerate(0, 4)
    assert rates(optimizer, schedule, RAMP)[-1] == pytest.approx(0.8)


def test_its_state_is_plain_and_goes_on_elsewhere() -> None:
    optimizer, batches, schedule = scaled(4)
    batches.regenerate(0, 2)
    rates(optimizer, schedule, 4)
    other, other_batches, other_schedule = scaled(2)
    other.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"]
    other_schedule.load_state_dict(schedule.state_dict())
    assert rates(other, other_schedule, RAMP) == rates(optimizer, schedule, RAMP)


def test_it_is_multiplied_with_other_schedules() -> None:
    optimizer, batches, schedule = scaled(4, ramp=1)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    batches.regenerate(0, 2)
    optimizer.step()
    schedule.step()
    decay.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_bad_arguments() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.8)
    with pytest.raises(ddl.InvalidArgument, match="ramp=0 steps"):
        ddl_torch.elastic.ScaledLR(optimizer, ddl_torch.elastic.ElasticBatches(9, 1, rank=0, size=1), 0)
    with pytest.raises(ddl.InvalidArgument, match="has 4 shards"):
        ddl_torch.elastic.ScaledLR(optimizer, ddl_torch.elastic.ElasticBatches(9, 1, rank=0, size=1, shards=4))


def train() -> Dict[str, Any]:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    optimizer = ddl_torch.DistributedOptimizer(optimizer, model.named_parameters())
    batches = ddl_torch.elastic.ElasticBatches(100_000, 2)
    schedule = ddl_torch.elastic.ScaledLR(optimizer, batches, RAMP)
    training = ddl_torch.elastic.Training(model, optimizer, batches, scaled=schedule)
    seen: Dict[int, float] = {}
    for _ in training.epochs(1):
        for _ in training.steps(batches):
            if training.finished >= pace.last_step():
                return {"rates": seen, "weight": model.weight.tolist()}
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            schedule.step()
            seen[training.finished] = optimizer.param_groups[0]["lr"]
            time.sleep(0.02)
            elastic_job.reached(training.finished)
    raise AssertionError("the epoch was too short")


def test_all_ranks_have_the_same_rate_in_each_step() -> None:
    with ElasticJob(4, train) as job:
        job.wait_until(3)
        job.kill(1)
        job.wait_until(max(job.steps().values()) + 5)
        job.gain()
        answers = pace.finish(job)
    assert sorted(answers) == [0, 2, 3, 4]
    for step, rate in answers[4]["rates"].items():
        assert {answers[i]["rates"][step] for i in answers} == {rate}, step
    assert min(answers[0]["rates"].values()) < 0.4  # it went down when a rank was lost
    assert list(answers[0]["rates"].values())[-1] == pytest.approx(0.4)
    assert len({str(answer["weight"]) for answer in answers.values()}) == 1
