"""A rank's connections grow with the number of dimensions, not with that of ranks: counted, and derived from plans."""

from __future__ import annotations

from math import prod
from typing import Dict

import numpy as np
import pytest
import ranks
from core.jobs import connected

import ddl
from benchmarks.targets.connections_rank import settled
from ddl._comm.group import discover
from ddl.plan import Collective, build
from ddl.tuning.select import select

CONNECTIONS = 2  #: per neighbour and large operation's piece in flight: the default of DDL_CONNECTIONS


def neighbours(dimensions: str) -> Dict[bool, int]:
    """With how many ranks any rank exchanges messages in an all-reduce, at most; for small operations and large ones.

    No two ranks share memory. Of large layouts only some ranks are looked at: the plans are symmetric.
    """
    size = prod(map(int, dimensions.split("x")))
    topology = discover([[rank] for rank in range(size)], dimensions)
    most = {}
    for line in select(Collective.ALLREDUCE, topology):
        plans = [
            build(Collective.ALLREDUCE, line.algorithm, topology, rank) for rank in range(0, size, max(1, size // 64))
        ]
        most[line.small] = max(len(plan.peers) for plan in plans)
    return most


@pytest.mark.parametrize(
    ("few", "many"), [("16", "1024"), ("4x4", "64x64"), ("3x3x3", "16x16x16"), ("3x3x3x3", "8x8x8x8")]
)
def test_large_operations_have_two_neighbours_in_each_dimension(few: str, many: str) -> None:
    wanted = 2 * (few.count("x") + 1)
    assert neighbours(few)[False] == neighbours(many)[False] == wanted


def test_small_operations_have_one_neighbour_more_when_ranks_double() -> None:
    assert [neighbours(str(2**n))[True] for n in range(1, 11)] == list(range(1, 11))


def count() -> int:
    ddl.allreduce_(np.ones(2, np.float32))
    ddl.allreduce_(np.ones(1 << 16, np.float32))
    counted = settled()
    ddl.barrier()  # who ends closes its connections
    return counted


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("dimensions", ["16", "4x4x4"])
def test_a_rank_has_the_connections_of_its_neighbours_and_no_more(dimensions: str) -> None:
    job = connected("tcp", DDL_DIMENSIONS=dimensions, DDL_START_TIMEOUT="200", DDL_TIMEOUT="200")
    counted = ranks.run(prod(map(int, dimensions.split("x"))), count, **job)
    near, in_flight = neighbours(dimensions), 2
    assert set(counted) == {near[True] + near[False] * in_flight * CONNECTIONS}
