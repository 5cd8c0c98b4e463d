"""A rank joins a training of a large model: the state comes from several ranks, while these go on."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
import torch
from core.between import Between
from elastic import elastic_job, pace
from elastic.elastic_job import ElasticJob

import ddl
import ddl_torch
from ddl._comm import elastic as members

WIDTH = 1100


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 1))


def bits(value: Any) -> Any:
    """Return plain data that is the same only for the same bits."""
    if isinstance(value, torch.Tensor):
        return ddl_torch.elastic.following.digests([ddl_torch.elastic.following._piece(value)], [0], 1)
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    return [bits(part) for part in value] if isinstance(value, (list, tuple)) else value


def train(weights_change_otherwise: bool) -> Dict[str, Any]:
    model = network()
    parameters: Any = [
        {"params": list(model[0].parameters()), "lr": 1e-3},
        {"params": [*model[1].parameters(), *model[2].parameters()], "lr": 1e-2},
    ]
    plain = torch.optim.AdamW(parameters)
    optimizer = ddl_torch.DistributedOptimizer(plain, model.named_parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    training = ddl_torch.elastic.Training(model, optimizer, schedule=schedule)
    for _ in training.steps(itertools.count()):
        if training.finished >= pace.last_step():
            break
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(1000 * training.finished + ddl.rank())
        model(torch.randn(4, WIDTH, generator=generator)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if weights_change_otherwise:
            with torch.no_grad():
                model[2].bias.add_(0.5)
        time.sleep(0.02)
        if training.gives_state:
            Path(os.environ["RANKS_FOLDER"], "asked").touch()
        elastic_job.reached(training.finished)
    answer: Dict[str, Any] = {"rank": ddl.rank(), "bytes_followed": training.bytes_followed}
    parameters = dict(model.named_parameters())
    return {**answer, "weights": bits(parameters), "optimizer": bits(optimizer.state_dict())}


def check(answers: Dict[int, Dict[str, Any]]) -> None:
    """All ranks have the same weights and state of the optimizer."""
    for answer in answers.values():
        assert answer["weights"] == next(iter(answers.values()))["weights"]
        assert answer["optimizer"] == next(iter(answers.values()))["optimizer"]


STATE = 3 * 4 * (WIDTH * WIDTH + 4 * WIDTH + 1)  # bytes of weights, and of what Adam keeps of them


def train_and_look() -> Dict[str, Any]:
    """Train, and look at what passes between this rank, if it joins, and those that give it the state."""
    with Between(members) as wire:
        answer = train(False)
    return {**answer, "passed": len(wire.seen), "readable": b"snapshot" in wire.seen}


def with_newcomer(size: int, function: Callable[..., Any], *args: Any, **env: str) -> Dict[int, Dict[str, Any]]:
    """Let a rank join ``size`` others; return the answers of all."""
    with ElasticJob(size, function, *args, env=env) as job:
        job.wait_until(10)
        job.gain()
        answers = pace.finish(job)
    check(answers)
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("encrypt", ["0", "1"])
def test_the_state_comes_while_the_others_train(encrypt: str) -> None:
    answers = with_newcomer(3, train_and_look, DDL_ENCRYPT=encrypt)
    assert [answers[i]["bytes_followed"] for i in range(3)] == [0, 0, 0]
    assert answers[3]["passed"] > answers[3]["bytes_followed"] > STATE
    assert answers[3]["readable"] == (encrypt == "0")


@pytest.mark.slow
def test_weights_that_change_beside_the_optimizer_are_noticed() -> None:
    """The digests differ, so the newcomer gets all of the state between two steps."""
    answers = with_newcomer(2, train, True)
    assert len(answers) == 3 and answers[2]["bytes_followed"] == 0


def wait_until_asked(job: ElasticJob) -> None:
    """Return when a rank that joins has begun to get the state."""
    asked, deadline = Path(job.folder, "asked"), time.monotonic() + elastic_job.PATIENCE
    while not asked.exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.slow
def test_a_rank_that_sends_the_state_dies() -> None:
    with ElasticJob(3, train, False) as job:
        job.wait_until(10)
        job.join()
        wait_until_asked(job)
        job.lose(1)
        answers = pace.finish(job)
    check(answers)
    assert sorted(answers) == [0, 2, 3] and job.news[0]["members"] == [0, 2]


@pytest.mark.slow
def test_a_rank_dies_that_is_about_to_join() -> None:
    with ElasticJob(2, train, False) as job:
        job.wait_until(10)
        job.join()
        wait_until_asked(job)
        job.kill(2)
        answers = pace.finish(job)
    check(answers)
    # The others do not even notice, unless it was a member already.
    assert sorted(answers) == [0, 1] and len(job.news) in (0, 2)


@pytest.mark.slow
def test_three_ranks_join_at_once() -> None:
    with ElasticJob(2, train, False) as job:
        job.wait_until(10)
        for _ in range(3):
            job.join()
        news = job.wait_for_generation(1)
        while len(news["members"]) < 5:
            news = job.wait_for_generation(int(news["generation"]) + 1)
        answers = pace.finish(job)
    check(answers)
    assert all(answers[i]["bytes_followed"] > STATE for i in (2, 3, 4))
