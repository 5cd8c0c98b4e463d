"""Weights have the same bits on any number of ranks, while ranks are lost and join; and a log replays to the bit."""

from __future__ import annotations

import functools
import itertools
import os
import random
import time
from typing import Any, Callable, Dict, List, Tuple
from unittest import mock

import pytest
import ranks
import torch
from docstrings import run_examples
from documents import names_after, python_blocks
from elastic import elastic_job, pace
from elastic.elastic_job import ElasticJob

import ddl
import ddl_torch
from ddl.adapter.sample_cursor import StepRecord, check_committed_once
from ddl_torch.elastic._shard_gradients import ShardGradients
from ddl_torch.elastic.by_shards import TrainingByShards, deal

SHARDS, PER_SHARD, LENGTH = 12, 4, 700  # the last step of an epoch has too few samples
EPOCHS = 3
STEPS = EPOCHS * -(-LENGTH // (SHARDS * PER_SHARD))
MOMENTS = 0.12  #: seconds: ranks come and go so long after one another at most, which is some steps


def samples() -> torch.utils.data.TensorDataset:
    x = torch.randn(LENGTH, 16, generator=torch.Generator().manual_seed(5))
    return torch.utils.data.TensorDataset(x, x.abs().sum(dim=1, keepdim=True))


def network(dropout: float) -> Tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(16, 100), torch.nn.BatchNorm1d(100), torch.nn.Tanh(), torch.nn.Dropout(dropout)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(100, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.8)


def bits(model: torch.nn.Module, optimizer: Any) -> str:
    """Return what is the same only for the same weights, and the same momentum."""
    momenta = [optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()]
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in [*model.parameters(), *momenta]])
    return flat.numpy().tobytes().hex()


def pause(training: Any) -> None:
    elastic_job.reached(training.finished)
    pace.pause(STEPS - training.finished)


def by_shards(workers: int = 0, after_step: Callable[[Any], None] = pause) -> Dict[str, Any]:
    model, optimizer, schedule = network(dropout=0.2)
    dataset = samples()
    batches = ddl_torch.elastic.ElasticBatches(dataset, PER_SHARD, shards=SHARDS, seed=3)
    loader = torch.utils.data.DataLoader(
        dataset, batch_sampler=batches, num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    training = TrainingByShards(model, optimizer, batches, schedule=schedule)
    computed: List[Tuple[int, int]] = []
    for _ in training.epochs(EPOCHS):
        for shards in training.steps(loader):
            for x, y in shards:
                torch.nn.functional.mse_loss(model(x), y).backward()
                computed.append((batches.step, batches.shard))
            optimizer.step()
            schedule.step()
            after_step(training)
    log = [line.to_plain() for line in training.log]
    return {"bits": bits(model, optimizer), "finished": training.finished, "log": log, "computed": computed}


@functools.cache
def alone() -> str:
    """Return the weights of a job of one rank that nothing happens to."""
    with ElasticJob(1, by_shards) as job:
        (answer,) = job.finish().values()
    return str(answer["bits"])


def check(answers: Dict[int, Dict[str, Any]]) -> List[StepRecord]:
    """All ranks have the weights of an undisturbed run; return the log of the oldest."""
    expected = alone()
    for answer in answers.values():
        assert answer["finished"] == STEPS and answer["bits"] == expected
    log = [StepRecord.from_plain(plain) for plain in answers[min(answers)]["log"]]
    assert len(log) == STEPS and check_committed_once(LENGTH, log) == EPOCHS
    # Each shard was computed once, but for those that a lost rank took with it.
    computed = [shard for answer in answers.values() for shard in answer["computed"]]
    assert len(computed) == len(set(computed))
    for record in log:
        if set(record.members) <= set(answers):
            assert {(record.step, shard) for shard in range(SHARDS)} <= set(computed)
    return log


@pytest.mark.slow
def test_the_number_of_ranks_changes_no_bit() -> None:
    with ElasticJob(4, by_shards) as job:
        check(job.finish())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ranks_that_are_lost_and_join_change_no_bit(workers: int) -> None:
    with ElasticJob(4, by_shards, workers) as job:
        job.wait_until(5)
        job.lose(1)
        job.wait_until(max(job.steps().values()) + 3)
        job.lose(0)
        job.gain()
        job.gain()
        answers = job.finish()
    log = check(answers)
    sizes = [len(record.members) for record in log]
    assert list(dict.fromkeys(sizes)) == [4, 3, 2] and sizes[-1] == 4


def churn(job: ElasticJob, seed: int, actions: int) -> None:
    """Kill ranks and let others join at random moments, but for one rank."""
    chance = random.Random(seed)
    alive = set(range(4))
    keep = chance.randrange(4)
    job.wait_until(2)
    for _ in range(actions):
        time.sleep(chance.uniform(0, MOMENTS))
        if len(alive) > 2 and (len(alive) > 4 or chance.random() < 0.5):
            victim = chance.choice(sorted(alive - {keep}))
            alive.remove(victim)
            job.kill(victim)
        else:
            alive.add(job.join())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_changes_at_any_moment_change_no_bit(seed: int) -> None:
    with ElasticJob(4, by_shards) as job:
        churn(job, seed, 8)
        answers = job.finish()
    check(answers)
    assert job.news


def by_shards_with_a_rank_behind() -> Dict[str, Any]:
    """Ranks 0, 1 and 3 have finished five steps when rank 1 is killed; rank 2 hears of that in the fifth."""
    own = ddl.rank() if ddl.size() == 4 else -1
    average, calls = ShardGradients.average, itertools.count(1)

    def broken_off(gradients: ShardGradients) -> None:
        average(gradients)
        if next(calls) == 5:
            ddl.barrier()

    def leave(training: Any) -> None:
        pause(training)
        if training.finished == 5 and own == 1:
            time.sleep(elastic_job.PATIENCE)
        elif training.finished == 5 and own in (0, 3):
            with pytest.raises(ddl.PeerLost):
                ddl.barrier()

    with mock.patch.object(ShardGradients, "average", broken_off if own == 2 else average):
        return by_shards(after_step=leave)


def test_a_rank_takes_the_step_that_others_have_finished() -> None:
    with ElasticJob(4, by_shards_with_a_rank_behind) as job:
        job.wait_until(5, ranks_there=3)
        job.lose(1)
        answers = job.finish()
    log = check(answers)
    assert [len(record.members) for record in log[:6]] == [4] * 5 + [3]
    # In the next one, ranks 0 and 3 have three shards each when they hear of it; then all come to have four.
    next_step = {rank: {v for step, v in answer["computed"] if step == 5} for rank, answer in answers.items()}
    assert next_step == {0: {0, 4, 6, 8}, 2: {1, 2, 5, 9}, 3: {3, 7, 10, 11}}


# --- a replay of a log ---


def plain() -> Dict[str, Any]:
    model, optimizer, schedule = network(dropout=0)
    dataset = samples()
    optimizer = ddl_torch.DistributedOptimizer(optimizer, model.named_parameters(), deterministic=True)
    batches = ddl_torch.elastic.ElasticBatches(dataset, 6)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=batches)
    training = ddl_torch.elastic.Training(model, optimizer, batches, schedule=schedule)
    for epoch in training.epochs(EPOCHS):
        for x, y in training.steps(loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            schedule.step()
            elastic_job.reached(training.finished)
            pace.pause(((EPOCHS - epoch) * LENGTH - batches.state_dict()["position"]) // (6 * ddl.size()))
    return {"bits": bits(model, optimizer), "log": [line.to_plain() for line in training.log]}


def replayed(plain_log: List[Dict[str, Any]], dropout: float, seed: int) -> str:
    model, optimizer, schedule = network(dropout)
    log = [StepRecord.from_plain(line) for line in plain_log]
    for shards in ddl_torch.elastic.replay(optimizer, samples(), log, seed=seed):
        for x, y in shards:
            torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        schedule.step()
    return bits(model, optimizer)


def check_replay(answers: Dict[int, Dict[str, Any]]) -> None:
    assert len({answer["bits"] for answer in answers.values()}) == 1
    oldest = answers[min(answers)]
    assert check_committed_once(LENGTH, map(StepRecord.from_plain, oldest["log"])) == EPOCHS
    assert ranks.run(1, replayed, oldest["log"], 0.0, 0) == [oldest["bits"]]


@pytest.mark.slow
def test_a_replay_of_the_log_has_the_same_bits() -> None:
    with ElasticJob(4, plain) as job:
        job.wait_until(5)
        job.lose(2)
        job.gain(steps=3)
        job.lose(0)
        answers = job.finish()
    check_replay(answers)
    assert sum(bool(line["lost"]) for line in answers[1]["log"]) == 2
    assert {len(line["members"]) for line in answers[1]["log"]} == {3, 4}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_replay_after_changes_at_any_moment_has_the_same_bits(seed: int) -> None:
    with ElasticJob(4, plain) as job:
        churn(job, seed, 8)
        answers = job.finish()
    kept = [i for i in answers if len(answers[i]["log"]) and answers[i]["log"][0]["step"] == 0]
    check_replay({i: answers[i] for i in [*kept, *answers]})


def by_shards_and_its_replay() -> None:
    answer = by_shards()
    assert replayed(answer["log"], 0.2, 3) == answer["bits"]


@pytest.mark.slow
def test_a_training_by_shards_is_replayed_with_its_dropout() -> None:
    with ElasticJob(1, by_shards_and_its_replay) as job:
        job.finish()


# --- who computes what ---


def test_missing_shards_go_to_those_that_have_the_fewest() -> None:
    assert deal([set(), set(), set(), set()], 12) == tuple(v % 4 for v in range(12))
    # Rank 1 of four is lost when all have computed their shards: the three others get one more each.
    assert deal([{0, 4, 8}, {2, 6, 10}, {3, 7, 11}], 12) == (0, 0, 1, 2, 0, 1, 1, 2, 0, 2, 1, 2)
    # Rank 0 has begun the next step; the others had not finished this one, and have nothing of the next.
    assert deal([{0, 4, 8}, set(), set()], 12) == (0, 1, 2, 1, 0, 2, 1, 2, 0, 0, 1, 2)
    assert deal([{0}, {0, 1}], 3) == (0, 1, 0)


# --- what a script may do ---


class Mixed(torch.nn.Module):
    """Parameters of several types; a shard with a negative sample does not use ``seldom``, and none uses ``never``."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
            values = torch.randn(3, 5, generator=generator).to(dtype)
            self.register_parameter(f"{dtype}".replace(".", "_"), torch.nn.Parameter(values))
        self.image = torch.nn.Parameter(
            torch.randn(2, 3, 4, 5, generator=generator).contiguous(memory_format=torch.channels_last)
        )
        self.seldom, self.never = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [(p * x[0]).abs().double().pow(2).sum() for name, p in self.named_parameters() if name[0] in "ti"]
        if x[0] > 0:
            parts.append(self.seldom.sum() * x.double().sum())
        return torch.stack(parts).sum()


def mixed() -> List[Any]:
    """Train with all kinds of parameters; half way one of them is thawed, and a step is left out."""
    model = Mixed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    numbers = torch.randn(48, 1, generator=torch.Generator().manual_seed(2))
    batches = ddl_torch.elastic.ElasticBatches(numbers, 2, shards=6)
    loader = torch.utils.data.DataLoader(numbers, batch_sampler=batches)
    training = TrainingByShards(model, optimizer, batches)
    used = []
    for epoch in training.epochs(2):
        model.frozen.requires_grad_(epoch > 0)
        for shards in training.steps(loader):
            for x in shards:
                (model(x) + (epoch and model.frozen.sum())).backward()
            assert model.image.grad is not None and model.image.grad.stride() == model.image.stride()
            used.append([name for name, p in model.named_parameters() if p.grad is None])
            if training.finished != 5:
                optimizer.step()
    assert training.finished == 8 and (model.never == 1).all()
    assert used == [["never", "frozen"]] * 4 + [["never"]] * 4
    return [p.detach().reshape(-1).view(torch.uint8).tolist() for p in model.parameters()]


def test_parameters_of_all_kinds() -> None:
    """Weight decay would change what no shard has used, if it had a gradient of zeros."""
    expected = ranks.run(1, mixed)
    assert ranks.run(3, mixed) == expected * 3


def mistakes() -> List[str]:
    model, optimizer, _ = network(dropout=0)
    dataset = samples()
    texts = []

    def refuse(kind: type, call: Any) -> None:
        with pytest.raises(kind) as caught:
            call()
        texts.append(str(caught.value))

    def batches(shards: Any) -> Any:
        return ddl_torch.elastic.ElasticBatches(dataset, PER_SHARD, shards=shards)

    training = TrainingByShards(model, optimizer, batches(4))
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=training._batches)
    refuse(ddl.InvalidState, optimizer.step)
    refuse(ddl.InvalidState, lambda: optimizer.step(lambda: 0.0))
    refuse(ddl.InvalidState, lambda: [list(shards) for shards in training.steps(loader)])
    refuse(ddl.InvalidState, lambda: [next(iter(shards)) for shards in training.steps(loader)])
    wrapped = ddl_torch.DistributedOptimizer(torch.optim.SGD(model.parameters()), model.named_parameters())
    refuse(ddl.InvalidArgument, lambda: TrainingByShards(model, wrapped, batches(4)))
    refuse(ddl.InvalidArgument, lambda: TrainingByShards(model, optimizer, batches(None)))
    refuse(ddl.InvalidArgument, lambda: ddl_torch.elastic.Training(model, wrapped, batches(4)))
    refuse(ddl.InvalidArgument, lambda: next(ddl_torch.elastic.replay(optimizer, dataset, [])))
    return texts


def test_mistakes_are_refused() -> None:
    words = [
        "no averages for optimizer.step",
        "a closure of optimizer.step",
        "shard 0 has brought no gradient",
        "was left before its end",
    ]
    words += ["not a DistributedSGD", "needs ElasticBatches", "use elastic.TrainingByShards", "this one has 2"]
    texts = ranks.run(2, mistakes)[0]
    assert len(texts) == len(words) and all(word in text for word, text in zip(words, texts)), texts


def the_document() -> List[List[float]]:
    blocks = [block for block in python_blocks("docs/elastic.md") if "for shards in" in block]
    assert ["TrainingByShards" in blocks[0], "replay" in blocks[1], len(blocks)] == [True, True, 2]
    names = names_after("".join(blocks if os.environ["DDL_SIZE"] == "1" else blocks[:1]), ".")
    weights = [parameter.tolist() for parameter in names["model"].parameters()]
    if ddl.size() == 1:
        assert weights == [parameter.tolist() for parameter in names["again"].parameters()]
    return weights


def test_the_document_says_the_truth() -> None:
    assert ranks.run(3, the_document) == ranks.run(1, the_document) * 3


def examples() -> int:
    model, optimizer, _ = network(dropout=0)
    space: Dict[str, Any] = {"ddl_torch": ddl_torch, "torch": torch, "model": model, "optimizer": optimizer}
    space.update(dataset=torch.utils.data.Subset(samples(), range(100)), loss=torch.nn.functional.mse_loss, deal=deal)
    count = run_examples(TrainingByShards.__doc__, space)
    assert space["training"].finished == 10
    space["model"], space["optimizer"], _ = network(dropout=0)
    space["log"] = space["training"].log
    count += run_examples(ddl_torch.elastic.replay.__doc__, space) + run_examples(deal.__doc__, space)
    assert bits(space["model"], space["optimizer"]) == bits(model, optimizer)
    return count


def test_the_examples_run() -> None:
    assert ranks.run(1, examples) == [6]
