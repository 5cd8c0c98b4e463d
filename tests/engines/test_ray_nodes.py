"""``ddl.ray`` on a real Ray with several nodes, all on this machine: where ranks are, and nodes that come and go."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import local_ray
import numpy as np
import pytest

import ddl

pytest.importorskip("ray", reason="Ray is not installed (pip install 'ray==2.60.0')")
pytestmark = [pytest.mark.slow, pytest.mark.processes]

from ddl.ray import RayExecutor  # noqa: E402
from ddl.ray.elastic import ElasticRayExecutor  # noqa: E402

PATIENT = RayExecutor.create_settings(timeout_s=120, placement_group_timeout_s=120)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with local_ray.nodes(2, 2) as cluster:
        yield cluster


def place() -> Tuple[Any, ...]:
    import ray

    total = int(ddl.allreduce(np.array([ddl.rank()]), op=ddl.Sum).item())
    return ray.get_runtime_context().get_node_id(), ddl.local_rank(), ddl.local_size(), ddl.cross_rank(), total


@pytest.mark.parametrize("numbers", [{"num_workers": 4}, {"num_hosts": 2, "num_workers_per_host": 2}], ids=str)
def test_ranks_of_a_node_follow_one_another(cluster: Any, numbers: Any) -> None:
    import ray

    executor = RayExecutor(PATIENT, **numbers)
    executor.start()
    places = executor.run(place)
    executor.shutdown()
    own = ray.get_runtime_context().get_node_id()
    assert [where == own for where, *_ in places] == [True, True, False, False]
    assert [rest for _, *rest in places] == [[0, 2, 0, 6], [1, 2, 0, 6], [0, 2, 1, 6], [1, 2, 1, 6]]


def trains(folder: str) -> Tuple[float, List[int]]:
    """Train until four ranks were there, then fewer, then four again; each step adds one to ``total``."""
    import ddl.elastic

    state = ddl.elastic.ObjectState(total=0.0, sizes=[])

    @ddl.elastic.run
    def steps(state: Any) -> None:
        while not (min(state.sizes, default=4) < 4 == state.sizes[-1]):
            state.total += float(ddl.allreduce(np.ones(1)).item())
            state.sizes = [*state.sizes, ddl.size()]
            state.commit()
            if ddl.rank() == 0:
                Path(folder, str(ddl.size())).touch()  # the test looks at it
            time.sleep(0.01)

    steps(state)
    return state.total, state.sizes


def appears(path: Path, run: Future[Any]) -> None:
    while not path.exists() and not run.done():  # the test's own limit ends it
        time.sleep(0.05)


@pytest.mark.faults
def test_nodes_drive_the_generations(cluster: Any, tmp_path: Path) -> None:
    """The last test here: it takes a node away, and brings another one."""
    executor = ElasticRayExecutor(PATIENT, min_workers=2, elastic_timeout=200)
    with ThreadPoolExecutor(1) as beside:  # Ray adds nodes in the main thread only
        run = beside.submit(executor.run, trains, (str(tmp_path),))
        appears(tmp_path / "4", run)
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
        appears(tmp_path / "2", run)
        cluster.add_node(**local_ray.node(2))
        results = run.result()
    total, sizes = results[0]
    assert results == [(total, sizes)] * 4 and total == len(sizes)
    assert sizes[0] == 4 and min(sizes) == 2 and sizes[-1] == 4
