"""``ddl.ray.RayExecutor`` on a real Ray: runs in the same actors, placement, and actors that raise or are killed."""

from __future__ import annotations

import os
import signal
from typing import Any, Iterator, List, Tuple

import local_ray
import numpy as np
import pytest

import ddl

pytest.importorskip("ray", reason="Ray is not installed (pip install 'ray==2.60.0')")
pytestmark = [pytest.mark.slow, pytest.mark.processes]

from ddl.ray import RayExecutor  # noqa: E402

PATIENT = RayExecutor.create_settings(timeout_s=120, placement_group_timeout_s=120)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with local_ray.started() as ray:
        yield ray


@pytest.fixture
def executor(ray: Any) -> Iterator[RayExecutor]:
    executor = RayExecutor(PATIENT, num_workers=2)
    executor.start(Counter, ("a counter",), extra_env_vars={"OF_THE_USER": "1"})
    yield executor
    executor.shutdown()


class Counter:
    """What a user's executable may be: it keeps an array from one call to the next."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.total = np.zeros(1, int)
        assert ddl.size() == 2

    def add(self) -> int:
        self.total += ddl.allreduce(np.array([ddl.rank() + 1]), op=ddl.Sum)
        return int(self.total.item())


def total(value: int, times: int = 1) -> Tuple[int, int, int, int]:
    ddl.init()  # as a script for horovod.ray does; nothing happens
    return ddl.rank(), ddl.local_size(), os.getpid(), times * int(ddl.allreduce(np.array([value]), op=ddl.Sum).item())


def ends_itself(value: int) -> int:
    result = total(value)[-1]
    ddl.shutdown()
    return result


def raises(rank: int) -> None:
    if ddl.rank() == rank:
        raise FileNotFoundError("no such file: data")
    ddl.barrier()


def is_killed(rank: int) -> None:
    ddl.barrier()
    if ddl.rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    ddl.barrier()


def test_runs_in_the_same_actors(ray: Any, executor: RayExecutor) -> None:
    first = executor.run(total, (3,), {"times": 2})
    second = ray.get(executor.run_remote(total, args=[4]))
    assert [(rank, size, value) for rank, size, _, value in first] == [(0, 2, 12), (1, 2, 12)]
    assert [(rank, size, value) for rank, size, _, value in second] == [(0, 2, 8), (1, 2, 8)]
    assert [run[2] for run in first] == [run[2] for run in second] != 2 * [os.getpid()]
    assert executor.run(ends_itself, (1,)) == executor.run(ends_itself, (1,)) == [2, 2]  # joins it again
    assert executor.run(os.getenv, ["OF_THE_USER"]) == ["1", "1"]
    assert executor.failure is None


def test_executables_stay(executor: RayExecutor) -> None:
    assert executor.execute(lambda counter: counter.add()) == [3, 3]
    assert executor.execute(lambda counter: counter.add()) == [6, 6]
    assert executor.execute_single(lambda counter: (counter.name, ddl.rank())) == ("a counter", 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_function_that_raises_ends_the_others_at_once_and_the_next_run_is_a_new_job(
    executor: RayExecutor, rank: int
) -> None:
    with pytest.raises(
        ddl.RankFailed, match=rf"rank {rank} of 2 \(host .+\) failed: .*FileNotFoundError: no such file"
    ) as caught:
        executor.run(raises, (rank,))
    assert caught.value.rank == rank and isinstance(caught.value.__cause__, FileNotFoundError)
    assert executor.run(ends_itself, (2,)) == [4, 4]


def test_references_tell_of_a_failure_too(ray: Any, executor: RayExecutor) -> None:
    references = executor.run_remote(raises, (1,))
    with pytest.raises(ddl.Aborted, match="no such file: data"):
        ray.get(references[0])
    assert executor.failure is not None and executor.failure.rank == 1
    assert executor.run(ends_itself, (2,)) == [4, 4]


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
def test_an_actor_that_is_killed_is_named(executor: RayExecutor, rank: int) -> None:
    with pytest.raises(ddl.RankFailed, match=rf"^rank {rank} of 2 \(host .+\) failed: PeerLost: its process") as caught:
        executor.run(is_killed, (rank,))
    assert type(caught.value.__cause__).__module__ == "ray.exceptions"


def place() -> Tuple[int, ...]:
    return ddl.rank(), ddl.local_rank(), ddl.local_size(), ddl.cross_rank(), ddl.cross_size()


def test_two_workers_on_the_one_host(ray: Any) -> None:
    executor = RayExecutor(PATIENT, num_hosts=1, num_workers_per_host=2, cpus_per_worker=2)
    executor.start()
    assert executor.run(place) == [(0, 0, 2, 0, 1), (1, 1, 2, 0, 1)]
    executor.shutdown()
    executor.shutdown()
    with pytest.raises(ddl.InvalidState, match="call start"):
        executor.run(place)


def test_resources_that_are_not_there(ray: Any) -> None:
    executor = RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=1), num_workers=5, cpus_per_worker=1)
    with pytest.raises(
        ddl.RendezvousError, match="5 workers, each with {'CPU': 1}.* within 1 s.* the cluster has CPU 4"
    ):
        executor.start()


def test_what_makes_no_sense() -> None:
    for numbers in ({}, {"num_workers": 0}, {"num_workers": 2, "num_hosts": 2}):
        with pytest.raises(ddl.InvalidArgument, match="RayExecutor"):
            RayExecutor(PATIENT, **numbers)


def nodes_of(order: List[int], nodes: List[str]) -> List[str]:
    return [nodes[index] for index in order]


def test_ranks_of_a_node_follow_one_another_and_the_own_node_is_first() -> None:
    from ddl.ray.placement import node_first

    nodes = ["c", "a", "b", "a", "c"]
    assert nodes_of(node_first(nodes, "b"), nodes) == ["b", "a", "a", "c", "c"]
    assert nodes_of(node_first(nodes, "z"), nodes) == ["a", "a", "b", "c", "c"]
