"""A rank takes a step from another one that had finished it, whatever that one had done since.

Which rank has finished a step when another one dies is decided within microseconds. So nobody dies here: the ranks
are put in that place, and change.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest
import torch
from elastic import elastic_job
from elastic.elastic_job import ElasticJob

import ddl
import ddl_torch

LOST = 9  #: the number of a process that both ranks have dealt samples to, and that is gone


def wait_for(name: str) -> None:
    """Return when the other rank has made that file."""
    deadline = time.monotonic() + elastic_job.PATIENCE
    while not Path(os.environ["RANKS_FOLDER"], name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def take(is_done_again: bool) -> Dict[str, Any]:
    """Rank 0 finishes step 2, and changes its learning rate. Rank 1 takes the step; both do a third one."""
    model = torch.nn.Linear(3, 1).double()
    torch.nn.init.ones_(model.weight)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    optimizer = ddl_torch.DistributedOptimizer(plain, model.named_parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    batches = ddl_torch.elastic.ElasticBatches(60, 2)
    training = ddl_torch.elastic.Training(model, optimizer, batches, schedule=schedule)
    if is_done_again:  # rank 2 of three has broken off the second step, and it is done without it
        training._dealt_to = (0, 1, LOST)
        training._deal()
    dealt: List[List[int]] = []
    rates: List[float] = []
    for step, indices in enumerate(training.steps(batches), 1):
        dealt.append(indices)
        if step == 2 and is_done_again:
            training._dead = {2}
        optimizer.zero_grad()
        model(torch.full((1, 3), float(step), dtype=torch.float64)).sum().backward()
        if step == 2 and ddl.rank() == 1:  # as if its round had been broken off, and only that of this rank
            Path(os.environ["RANKS_FOLDER"], "round.1").touch()  # it has ended in truth: a change would break it off
            wait_for("step.0")
            assert not optimizer._ddl._recover(ddl.PeerLost("a rank is lost"), training._recover)
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
        if step == 2 and ddl.rank() == 0:
            wait_for("round.1")
            elastic_job.reached(step)
            training._change(None, between_steps=True)
        if step == 4:
            break
    log = [record.to_plain() for record in training.log]
    place = batches.state_dict()
    return {"dealt": dealt, "rates": rates, "log": log, "place": place, "weight": model.weight.tolist()}


@pytest.mark.parametrize("is_done_again", [False, True])
def test_a_rank_takes_a_step_with_its_account(is_done_again: bool) -> None:
    with ElasticJob(2, take, is_done_again) as job:
        answers = job.finish()
    assert answers[0]["weight"] == answers[1]["weight"]
    assert answers[0]["rates"] == answers[1]["rates"] == [0.05, 0.025, 0.0125, 0.00625]
    assert answers[0]["log"] == answers[1]["log"] and answers[0]["place"] == answers[1]["place"]
    assert [record["lost"] for record in answers[0]["log"]] == [(), (2,) if is_done_again else (), (), ()]
    for ours, theirs in zip(answers[0]["dealt"], answers[1]["dealt"]):
        assert not set(ours) & set(theirs)
