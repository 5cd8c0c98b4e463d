"""A process that joins waits for the end of the members' step, however long that takes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
from elastic import elastic_job
from elastic.elastic_job import ElasticJob

import ddl
from ddl.adapter import generation


def waits_for(name: str) -> Path:
    return Path(os.environ["RANKS_FOLDER"], name)


def steps_of_which_one_is_long() -> List[Optional[float]]:
    """Make steps, of which the members' third one ends when a newcomer waits. Return its limits for that wait."""
    generations = ddl.world().job.generations
    assert generations is not None
    limits: List[Optional[float]] = []
    next_record = generations.next_record

    def noted(after: int, timeout: Optional[float]) -> Any:
        limits.append(timeout)
        waits_for("joining").touch()
        return next_record(after, timeout)

    generations.next_record = noted  # type: ignore[method-assign]
    finished = 0
    if not generation.is_member():
        finished = generation.next_generation(finished=0).said[0]["finished"]
    while True:
        ended = ddl.allreduce(np.array([float(elastic_job.may_end())]), op="sum")
        finished += 1
        deadline = time.monotonic() + elastic_job.PATIENCE
        while finished == 3 and not waits_for("joining").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        elastic_job.reached(finished)
        if ended[0]:
            return limits
        if generation.begin_step(finished):
            generation.next_generation(finished=finished)


def test_a_newcomer_waits_for_the_end_of_a_long_step() -> None:
    with ElasticJob(2, steps_of_which_one_is_long) as job:
        job.wait_until(2)
        newcomer = job.join()
        news = job.wait_for_generation(1)
        assert news["members"] == [0, 1, newcomer] and news["lost"] == {}
        limits: Dict[int, List[Optional[float]]] = job.finish()
    assert limits == {0: [200.0], 1: [200.0], newcomer: [None]}
