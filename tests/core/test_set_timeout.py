"""``set_timeout``: of everything that is submitted from then on, also what was called or prepared before."""

from __future__ import annotations

import time
from typing import List

import numpy as np
import pytest
import ranks
from core.jobs import connected

import ddl

pytestmark = pytest.mark.processes


def calls_again(longer: bool) -> List[str]:
    world = ddl.world()
    parts = [world.split(0) for _ in range(3)]
    array, rows = np.ones(3), np.empty((2, 3))
    outcomes = []
    for number, part in enumerate(parts):
        assert part is not None and part.timeout == (0.8 if longer else 100.0)
        prepared = part.prepare_allreduce(array)
        call = [lambda: part.allgather(array, out=rows), lambda: part.allreduce_(array), prepared][number]  # noqa: B023
        call()
        part.set_timeout(20.0 if longer else 0.5)
        assert part.timeout == (20.0 if longer else 0.5)
        if world.rank == 1:
            time.sleep(1.2)
        try:
            call()
            outcomes.append("returned")
        except ddl.CommunicatorError as error:
            outcomes.append(type(error).__name__)
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_a_longer_deadline(transport: str) -> None:
    answers = ranks.run(2, calls_again, True, **connected(transport, DDL_TIMEOUT="0.8"))
    assert answers == [["returned"] * 3] * 2


@pytest.mark.slow
def test_a_shorter_deadline() -> None:
    first, _ = ranks.run(2, calls_again, False)
    assert first == ["CollectiveTimeout"] * 3
