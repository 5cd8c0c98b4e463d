"""The same ranks fail again and again, though none is lost: they try for a while, and then end with the cause."""

from __future__ import annotations

import itertools
import json
from typing import Any, Dict, List
from unittest import mock

import numpy as np
import pytest
from elastic import elastic_job
from elastic.elastic_job import ElasticJob

import ddl
import ddl.elastic
from ddl.adapter import fruitless, generation
from ddl.adapter.fruitless import Fruitless

pytestmark = pytest.mark.processes

REFUSED = ddl.PeerLost("connection refused")


def broken(change: generation.Change) -> None:
    raise ddl.ProtocolError(f"rank {ddl.rank()} cannot read this")


def by_commits() -> None:
    @ddl.elastic.run
    def train(state: Any) -> None:
        while True:
            ddl.allreduce(np.ones(3))
            state.step += 1
            elastic_job.reached(state.step)
            state.commit()

    train(ddl.elastic.ObjectState(step=0))


def by_steps() -> None:
    import torch

    import ddl_torch

    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = ddl_torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    training = ddl_torch.elastic.Training(model, optimizer)
    for _ in training.epochs(1):
        for _ in training.steps(itertools.repeat(0)):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            elastic_job.reached(training.finished)


def fail_for_ever(program: str) -> str:
    """Train; what comes after the first change is broken. Return the error."""
    generation.bring_along(broken)
    with mock.patch.multiple(fruitless, _SECONDS=0.0, _LONGEST_PAUSE=0.01), pytest.raises(ddl.LeftOut) as caught:
        globals()[program]()
    assert generation.number() == 11  # the first has other ranks than the one before
    return str(caught.value)


@pytest.mark.parametrize("program", ["by_commits", "by_steps"])
def test_ranks_that_fail_for_ever_end(program: str) -> None:
    with ElasticJob(3, fail_for_ever, program) as job:
        job.wait_until(5)
        job.kill(1)
        answers = sorted(job.finish().values())
    assert len(answers) == 2
    for rank, said in enumerate(answers):
        assert said.startswith(f"[rank {rank}/2 ") and "the same 2 ranks began again 10 times" in said
        for other in (0, 1):
            assert f"rank {other} has ProtocolError: rank {other} cannot read this" in said


class Ranks:
    """What ``count`` ranks keep of a job, without the job."""

    def __init__(self, count: int) -> None:
        self.each = [Fruitless() for _ in range(count)]
        self.generation = 0
        self.now = 0.0

    def next(self, finished: int, newcomer: bool = False, fails: int = 1, seconds: float = 10.0) -> None:
        """Let the ranks begin again, since the last one has failed, ``fails`` times; each takes so many seconds."""
        for _ in range(fails):
            self.generation += 1
            with mock.patch("ddl.clock.now", lambda: self.now):
                said: Dict[int, Dict[str, Any]] = {}
                for rank, one_rank in enumerate(self.each):
                    lost = REFUSED if rank == len(self.each) - 1 else None
                    said[rank] = {**one_rank.says(self.generation - 1, lost), "finished": finished, "newcomer": False}
                said[len(self.each) - 1]["newcomer"] = newcomer
                errors: List[ddl.LeftOut] = []
                for one_rank in self.each:
                    try:
                        one_rank.formed(self.generation, said, "[who]", 600)
                    except ddl.LeftOut as error:
                        errors.append(error)
            self.now += seconds
            if errors:
                assert len(errors) == len(self.each)
                raise errors[0]


def test_a_step_or_another_rank_is_a_new_beginning() -> None:
    ranks = Ranks(3)
    for step in range(3):
        ranks.next(step, fails=10)
    for _ in range(3):
        ranks.next(2, newcomer=True)
        ranks.next(2, fails=9)
    ranks.each.pop()
    ranks.next(2, fails=10)
    with pytest.raises(ddl.LeftOut, match=r"2 ranks began again 10 times in 90 s.*rank 1 has PeerLost: connection ref"):
        ranks.next(2)


def test_what_is_said_is_short_in_any_script() -> None:
    said = Fruitless().says(0, ddl.PeerLost("\u00fc" * 1000))
    assert len(json.dumps(said["error"])) == 202


def test_a_network_may_refuse_for_a_minute() -> None:
    ranks = Ranks(2)
    ranks.next(5, fails=60, seconds=1)
    with pytest.raises(ddl.LeftOut, match="again 61 times in 60 s"):
        ranks.next(5, fails=2, seconds=1)


def test_a_rank_that_was_late_for_a_generation_ends_with_the_others() -> None:
    """The others have counted one more than it has."""
    ranks = Ranks(2)
    ranks.next(5, fails=4)
    late = ranks.each.pop()
    ranks.each.append(Fruitless())
    ranks.next(5)
    ranks.each[-1] = late
    late._generation = ranks.generation
    ranks.next(5, fails=5)
    with pytest.raises(ddl.LeftOut, match="again 10 times"):
        ranks.next(5)
