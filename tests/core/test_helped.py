"""Jobs whose ranks have helpers: every collective is right, with the bits that it has without them."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.everything import check_everything
from core.jobs import connected
from core.values import placed

import ddl
from ddl import _core
from ddl.bootstrap.cores import quota
from ddl.plan.ir import Collective
from ddl.topology import Topology
from ddl.tuning.select import of_size, select

pytestmark = pytest.mark.processes

#: float32 and int16: with these, blocks of two to four ranks are large enough to be shared, and parts end anywhere.
COUNTS = [270_011, 600_001]


def helped(counts: List[int]) -> Tuple[int, int]:
    rounds = check_everything(ddl.world(), counts)
    return rounds, _core.helpers()[0]


@pytest.mark.few(2)
@pytest.mark.parametrize(("transport", "size"), [("shared", 2), ("shared", 3), ("hybrid", 4), ("tcp", 2)])
def test_every_collective(transport: str, size: int) -> None:
    assert ranks.run(size, helped, COUNTS, **connected(transport, DDL_CORES="3")) == [(2, 2)] * size


def sums(deterministic: bool) -> List[bytes]:
    """Of values whose sums depend on their order; by arrays of all kinds."""
    comm = ddl.world().split(0, deterministic=deterministic)
    assert comm is not None
    random = np.random.default_rng(comm.rank)
    results = []
    for dtype in ("float32", "float64", "float16"):
        for shared in (False, True):
            x = placed(random.standard_normal(700_001).astype(dtype), shared)
            comm.allreduce_(x, op=ddl.Average)
            results.append(x.tobytes())
            results.append(comm.reducescatter(x, op=ddl.Sum).tobytes())
    comm.close()
    return results


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_same_bits(deterministic: bool) -> None:
    alone, three = (ranks.run(3, sums, deterministic, env={"DDL_CORES": cores}) for cores in ("1", "3"))
    assert alone == three


def chosen() -> Dict[str, Any]:
    comm = ddl.world()
    whole, part = _core.helpers()[0], comm.split(0)
    assert part is not None
    both = _core.helpers()[0]
    part.close()
    return {"helpers": {whole, both, _core.helpers()[0]}, "cores": comm._group.topology.cores}


@pytest.mark.parametrize("size", [2, 4])
def test_without_a_word_of_the_user_only_free_cores_are_used(size: int) -> None:
    usable = len(os.sched_getaffinity(0))
    cores = int(min(usable, quota() or usable) / size)
    wanted = {"helpers": {max(0, min(3, cores - 1))}, "cores": cores}
    assert ranks.run(size, chosen) == [wanted] * size


def bound(cores: List[int]) -> Dict[str, Any]:
    os.sched_setaffinity(0, [cores[int(os.environ["DDL_RANK"])]])
    ddl.init()
    return chosen()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks are bound to two cores")
def test_ranks_that_are_bound_to_cores_of_their_own() -> None:
    answers = ranks.run(2, bound, sorted(os.sched_getaffinity(0)), initialise=False)
    assert answers == [{"helpers": {0}, "cores": 1}] * 2


def test_all_is_over_after_shutdown() -> None:
    assert ranks.run(2, left_over, env={"DDL_CORES": "4"}) == [(3, 0)] * 2


def left_over() -> Tuple[int, int]:
    before = _core.helpers()[0]
    ddl.shutdown()
    return before, _core.helpers()[0]


def eager_limit(size: int, cores: int) -> int:
    lines = select(Collective.ALLREDUCE, Topology.flat(size, shared=True).with_cores(cores))
    return max(line.max_bytes for line in lines if line.algorithm == "eager")


def test_where_ranks_have_cores_eager_ends_earlier_the_more_ranks_there_are() -> None:
    """On 16 cores, 4 KiB took longer than 64 KiB from four ranks on."""
    assert [eager_limit(size, 1) for size in (2, 3, 4, 8, 16, 100)] == [4096, 2048, 2048, 1024, 512, 512]
    assert {eager_limit(size, 0) for size in (2, 3, 4, 8, 16)} == {4096}  # ranks that take turns
    eight = Topology.flat(8, shared=True)
    for collective in set(Collective) - {Collective.ALLREDUCE, Collective.SEND, Collective.RECV}:
        assert select(collective, eight.with_cores(2)) == select(collective, eight), collective
    assert of_size(select(Collective.ALLREDUCE, eight.with_cores(2)), 4096).algorithm == "direct"
