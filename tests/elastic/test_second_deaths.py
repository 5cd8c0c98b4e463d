"""A rank is killed, and another one dies while the ranks change because of that: at each message that it says or hears.

The simulation does this in all orders (tests/simulation); here real processes do it.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Dict, List
from unittest import mock

import pytest
from elastic import test_generations
from elastic.elastic_job import PATIENCE, ElasticJob

from ddl.bootstrap.generations import Generations
from ddl.store.messages import Message
from ddl.store.watch import WatchClient

FIRST = 1  #: the rank that is killed from outside
SAID = ["died", "ready", "promise", "accepted", "installed"]
LAST = "installed"  #: all say this. The store may know and decide before a rank has said ``died`` or ``ready``
HEARD = ["prepare", "accept", "commit", "go"]


def die_at(message: Message, *kinds: str) -> None:
    if message["type"] in kinds:
        os.kill(os.getpid(), signal.SIGKILL)


def train_and_die(victim: int, moment: str, kind: str) -> Dict[str, Any]:
    """Train; process ``victim`` dies before it says ``kind`` (or ``LAST``), or before it has understood it."""
    if int(os.environ["DDL_RANK"]) != victim:
        return test_generations.train()
    send, heard = WatchClient.send, Generations.heard

    def say(watch: WatchClient, message: Message) -> None:
        die_at(message, kind, LAST)
        send(watch, message)

    def hear(generations: Generations, message: Message) -> None:
        die_at(message, kind)
        heard(generations, message)

    patch = mock.patch.object(WatchClient, "send", say)
    if moment == "hears":
        patch = mock.patch.object(Generations, "heard", hear)
    with patch:
        return test_generations.train()


def moments() -> List[Any]:
    return [("says", kind) for kind in SAID] + [("hears", kind) for kind in HEARD]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2, 4])
@pytest.mark.parametrize(("moment", "kind"), moments())
def test_a_second_rank_dies_at_a_message(victim: int, moment: str, kind: str) -> None:
    with ElasticJob(5, train_and_die, victim, moment, kind) as job:
        job.wait_until(5)
        before = max(job.steps().values())
        killed = job.kill(FIRST)
        job._killed.append(victim)  # by itself
        job.wait_until(before + 10)
        pause = time.monotonic() - killed
        answers = test_generations.ended(job)
        job._processes[victim].join(PATIENCE)  # who started it may hear of its end later than the others
        assert job._processes[victim].exitcode == -signal.SIGKILL
        members = job.news[-1]["members"]
    assert members == [i for i in range(5) if i not in (FIRST, victim)]
    assert len(answers) == 3 and len(job.news) in (1, 2)
    assert pause < 60.0  # ten steps; a wait for something that does not come takes 100 s
