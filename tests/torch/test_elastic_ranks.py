"""``hvd.elastic`` where ranks are lost and join: the training goes on from the last commit, and weights stay equal."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, List
from unittest import mock

import pytest
import torch
from elastic import elastic_job
from elastic.elastic_job import ElasticJob

import ddl
import ddl_torch as hvd

BATCHES = 200


def train(compression: str) -> Dict[str, Any]:
    """A script for Horovod, but that it trains as long as the test wants."""
    torch.manual_seed(ddl.rank())
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
    state = hvd.elastic.TorchState(model, optimizer, batch=0)
    sizes: List[int] = []
    state.register_reset_callbacks([lambda: sizes.append(-1)])
    x, y = torch.randn(16, 20), torch.randn(16, 1)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        sizes.append(hvd.size())
        while True:
            ends = hvd.allreduce(torch.tensor([float(elastic_job.may_end())]), op=hvd.Sum, name="ends")
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            state.batch += 1
            elastic_job.reached(state.batch)
            if state.batch % 3 == 0:
                state.commit()
            else:
                state.check_host_updates()
            if ends.item():
                break

    loop(state)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    everybody = hvd.allgather(weights.reshape(1, -1))
    assert (everybody == everybody[0]).all()
    assert hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum).item() == hvd.size() == ddl.size()
    return {"rank": hvd.rank(), "size": hvd.size(), "batch": state.batch, "sizes": sizes}


@pytest.mark.few(1)
@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_a_rank_is_lost_and_another_joins(compression: str) -> None:
    with ElasticJob(3, train, compression) as job:
        answers = job.kill_and_replace()
    assert [answer["sizes"] for answer in answers] == [[3, -1, 2, -1, 3], [3, -1, 2, -1, 3], [3]]
    assert len({answer["batch"] for answer in answers}) == 1


def use_samples() -> List[int]:
    sampler = hvd.elastic.ElasticSampler(range(60_000), seed=4)
    state = hvd.elastic.TorchState(sampler=sampler, batch=0)
    used: List[int] = []

    @hvd.elastic.run
    def loop(state: Any) -> None:
        for number, index in enumerate(state.sampler):
            ends = hvd.allreduce(torch.tensor([float(elastic_job.may_end())]), op=hvd.Sum, name="ends")
            time.sleep(0.003)  # else the epoch is over soon
            used.append(index)
            state.sampler.record_batch(number, 1)
            state.batch += 1
            elastic_job.reached(state.batch)
            state.commit()
            if ends.item():
                break

    with contextlib.suppress(SystemExit):  # one is asked to leave
        loop(state)
    return used


def test_samples_that_a_rank_has_used_which_left_are_not_used_again() -> None:
    with ElasticJob(3, use_samples) as job:
        job.wait_until(5)
        job.leaving.append(0)
        job.store.remove(0)
        job.wait_for_generation(1)
        job.wait_until(max(job.steps().values()) + 20, 2)
        answers = job.finish()
    used = [index for indices in answers.values() for index in indices]
    assert len(answers) == 3 and len(set(used)) == len(used)


def test_a_rank_is_lost_in_the_sync_of_a_newcomer() -> None:
    """Every death that Horovod's own loop does not survive: here it is in the same ``try`` as the training."""
    with ElasticJob(3, train_with_slow_sync, "none") as job:
        job.wait_until(5)
        job.join()
        job.wait_for_generation(1)
        job.kill(1)
        job.wait_for_generation(2)
        job.wait_until(max(job.steps().values()) + 5)
        answers = sorted(job.finish().values(), key=lambda answer: answer["rank"])
    assert [answer["size"] for answer in answers] == [3, 3, 3]
    assert answers[2]["sizes"][-1] == 3


def train_with_slow_sync(compression: str) -> Dict[str, Any]:
    sync = hvd.elastic.TorchState.sync

    def slowly(self: Any) -> None:
        time.sleep(0.1)
        sync(self)

    with mock.patch.object(hvd.elastic.TorchState, "sync", slowly):
        return train(compression)
