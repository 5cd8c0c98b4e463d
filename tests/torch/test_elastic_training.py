"""``elastic.Training``: a step that a lost rank breaks off is done again in memory, and none is lost or done twice."""

from __future__ import annotations

import itertools
import os
from typing import Any, Dict, List, Optional, Tuple

import pytest
import ranks
import torch
from elastic import elastic_job, pace
from elastic.elastic_job import ElasticJob

import ddl
import ddl_torch
from ddl.adapter.sample_cursor import StepRecord, check_committed_once

SIZES = [(20, 300), (300, 50), (50, 1)]


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    layers: List[torch.nn.Module] = []
    for inputs, outputs in SIZES:
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1]).double()


def batch(incarnation: int, step: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """What a process trains on in a step: nobody else, and in no other step."""
    generator = torch.Generator().manual_seed(1000 * incarnation + step)
    x = torch.randn(8, 20, generator=generator, dtype=torch.float64)
    return x, x.mean(dim=1, keepdim=True)


def wrapped(model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    return ddl_torch.DistributedOptimizer(optimizer, model.named_parameters(), bucket_bytes=1 << 15, **options)


def train(options: Dict[str, Any]) -> Dict[str, Any]:
    model = network()
    optimizer = wrapped(model, **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    training = ddl_torch.elastic.Training(model, optimizer, schedule=schedule)
    own = int(os.environ["DDL_RANK"])
    log: Dict[int, Optional[List[int]]] = {}
    for _ in training.steps(itertools.count()):
        if training.finished >= pace.last_step():
            break
        optimizer.zero_grad()
        x, y = batch(own, training.finished + 1)
        torch.nn.functional.mse_loss(model(x), y).backward()
        # Its gradients are gone where the others have taken the step.
        averaged = next(model.parameters()).grad is not None
        members = list(ddl.world().job.members)
        optimizer.step()
        schedule.step()
        log[training.finished] = members if averaged else None
        elastic_job.reached(training.finished)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    return {"log": log, "weights": weights.tolist(), "finished": training.finished, "changes": training.changes}


def alone(members_of: Dict[int, List[int]], finished: int) -> torch.Tensor:
    """Train on one rank with the averages of the same batches."""
    torch.set_num_threads(1)  # as the ranks have: others would wait for one another where there are no cores for them
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    for step in range(1, finished + 1):
        optimizer.zero_grad()
        for member in members_of[step]:
            x, y = batch(member, step)
            (torch.nn.functional.mse_loss(model(x), y) / len(members_of[step])).backward()
        optimizer.step()
        schedule.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def check(answers: List[Dict[str, Any]]) -> Dict[int, List[int]]:
    """All ranks have the same weights: those of the batches of each step's members. Return these."""
    members_of: Dict[int, List[int]] = {}
    for answer in answers:
        for step, members in answer["log"].items():
            if members is not None:
                assert members_of.setdefault(step, members) == members, f"step {step}"
    finished = answers[0]["finished"]
    assert sorted(members_of) == list(range(1, finished + 1))
    for answer in answers:
        assert answer["weights"] == answers[0]["weights"] and answer["finished"] == finished
    expected = alone(members_of, finished)
    assert torch.allclose(torch.tensor(answers[0]["weights"], dtype=torch.float64), expected, rtol=1e-9, atol=1e-12)
    return members_of


def test_nothing_happens() -> None:
    with ElasticJob(3, train, {}) as job:
        job.wait_until(5)
        assert set(map(tuple, check(list(pace.finish(job).values())).values())) == {(0, 1, 2)}


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param(o, marks=pytest.mark.slow) for o in ({"overlap": True}, {"deterministic": True}))]
)
def test_ranks_are_lost_and_no_step_is_lost(options: Dict[str, Any]) -> None:
    with ElasticJob(4, train, options) as job:
        job.wait_until(20)
        job.lose(2)
        job.wait_until(max(job.steps().values()) + 10)
        job.lose(0)
        answers = list(pace.finish(job).values())
    members_of = check(answers)
    assert {tuple(members) for members in members_of.values()} == {(0, 1, 2, 3), (0, 1, 3), (1, 3)}


@pytest.mark.slow
def test_ranks_join_and_leave_and_no_step_is_done_twice() -> None:
    with ElasticJob(2, train, {}) as job:
        job.wait_until(20)
        job.gain(steps=10)
        job.gain()
        job.lose(0)
        answers = list(pace.finish(job).values())
    sets = {tuple(members) for members in check(answers).values()}
    assert sets >= {(0, 1), (0, 1, 2), (1, 2, 3)}


LENGTH, EPOCHS = 1000, 3


class Numbers(torch.utils.data.Dataset):
    """Samples that are their own numbers."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)], dtype=torch.float64)


def train_epochs(workers: int) -> Dict[str, Any]:
    model = torch.nn.Linear(1, 1).double()
    optimizer = wrapped(model)
    batches = ddl_torch.elastic.ElasticBatches(Numbers(), 4)
    # Workers are forked: they must not keep open what tells the others of this rank's end.
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_sampler=batches, num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    training = ddl_torch.elastic.Training(model, optimizer, batches)
    used: List[Tuple[int, int, List[int]]] = []
    for epoch in training.epochs(EPOCHS):
        for x in training.steps(loader):
            optimizer.zero_grad()
            padding = batches.padding
            (model(x) / LENGTH).pow(2).mean().backward()
            averaged = model.weight.grad is not None
            optimizer.step()
            if averaged or int(os.environ["DDL_RANK"]) in training.log[-1].members:
                numbers = [int(number) for number in x.reshape(-1)]
                used.append((epoch, training.finished, numbers[: len(numbers) - padding]))
            elastic_job.reached(training.finished)
            pace.pause(((EPOCHS - epoch) * LENGTH - batches.state_dict()["position"]) // (4 * ddl.size()))
    return {"log": [record.to_plain() for record in training.log], "used": used, "weight": model.weight.tolist()}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_each_sample_is_used_exactly_once_in_an_epoch(workers: int) -> None:
    with ElasticJob(4, train_epochs, workers) as job:
        for number, action in enumerate(("kill", "join", "kill", "join", "join", "kill"), 1):
            job.wait_until(max(job.steps().values(), default=0) + 8, ranks_there=2)
            if action == "kill":
                job.kill(min(i for i in job._processes if i not in job._killed))
            else:
                job.join()
            job.wait_for_generation(number)
        answers = job.finish()
    assert len({str(answer["weight"]) for answer in answers.values()}) == 1
    # The oldest survivor has seen all steps. Its log accounts for every sample of each epoch, once.
    log = [StepRecord.from_plain(plain) for plain in answers[min(answers)]["log"]]
    assert check_committed_once(LENGTH, log) == EPOCHS
    assert [record.step for record in log] == list(range(len(log))) and log[-1].epoch == EPOCHS - 1
    assert sum(bool(record.lost) for record in log) == 3
    # What the living have used in the steps that they have finished is what the log says: nothing twice.
    for epoch in range(EPOCHS):
        seen = [n for answer in answers.values() for e, _, numbers in answer["used"] if e == epoch for n in numbers]
        assert len(seen) == len(set(seen))


def train_short_epochs() -> List[Tuple[int, int]]:
    """Each epoch is a single step, so ranks join where one has just ended."""
    model = torch.nn.Linear(1, 1).double()
    optimizer = wrapped(model)
    batches = ddl_torch.elastic.ElasticBatches(8, 4)
    training = ddl_torch.elastic.Training(model, optimizer, batches)
    seen = []
    for epoch in training.epochs(150):
        for _ in training.steps(batches):
            optimizer.zero_grad()
            model(torch.ones(1, 1, dtype=torch.float64)).sum().backward()
            optimizer.step()
            seen.append((epoch, training.log[-1].epoch))
            elastic_job.reached(training.finished)
            pace.pause(149 - epoch)
    return seen


def test_a_rank_that_joins_after_an_epoch_begins_with_the_next() -> None:
    with ElasticJob(2, train_short_epochs) as job:
        job.wait_until(3)
        job.gain(steps=3)
        answers = job.finish()
    assert answers[0] == answers[1] == [(epoch, epoch) for epoch in range(150)]
    assert answers[2] == answers[0][-len(answers[2]) :]


def test_another_optimizer_is_refused() -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ddl.InvalidArgument, match="needs a DistributedOptimizer"):
        ddl_torch.elastic.Training(model, torch.optim.SGD(model.parameters(), lr=0.1))


def refuse() -> List[str]:
    texts = []
    for options in ({"overlap_update": True}, {"op": ddl.Adasum}):
        model = network()
        try:
            ddl_torch.elastic.Training(model, wrapped(model, **options))
        except ddl.InvalidArgument as error:
            texts.append(str(error))
    return texts


def test_what_cannot_be_done_again_is_refused() -> None:
    for texts in ranks.run(2, refuse):
        assert ["overlap_update" in texts[0], "op Average or Sum" in texts[1]] == [True, True]
