"""``ddl.ray.elastic``: actors of a real Ray that are killed while they train; the others go on, and new ones join."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import local_ray
import numpy as np
import pytest

import ddl

pytest.importorskip("ray", reason="Ray is not installed (pip install 'ray==2.60.0')")
pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.faults]

from ddl.ray import RayExecutor  # noqa: E402
from ddl.ray.elastic import ElasticRayExecutor  # noqa: E402

PATIENT = RayExecutor.create_settings(timeout_s=120)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with local_ray.started(cpus=3) as ray:
        yield ray


def trains(folder: str, killed: int, encrypted: bool) -> Tuple[int, float, List[int]]:
    """Train until three ranks were there, then fewer, then three again; each step adds one to ``total``."""
    import ddl.elastic

    assert ddl.world().job.settings.encrypt == encrypted
    state = ddl.elastic.ObjectState(total=0.0, sizes=[])
    mark = Path(folder) / "killed"

    @ddl.elastic.run
    def steps(state: Any) -> None:
        while not (min(state.sizes, default=3) < 3 == state.sizes[-1]):
            if len(state.sizes) == 5 and ddl.rank() == killed and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            state.total += float(ddl.allreduce(np.ones(1)).item())
            state.sizes = [*state.sizes, ddl.size()]
            state.commit()
            time.sleep(0.01)

    steps(state)
    return ddl.rank(), state.total, state.sizes


@pytest.mark.parametrize(("killed", "encrypted"), [(0, False), (2, True)])
def test_an_actor_is_killed_and_another_one_joins(
    ray: Any,
    tmp_path: Path,
    killed: int,
    encrypted: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DDL_ENCRYPT", str(int(encrypted)))  # of the driver; the actors are not told by Ray
    executor = ElasticRayExecutor(PATIENT, min_workers=2, max_workers=3, elastic_timeout=120)
    executor.start(extra_env_vars={"OF_THE_USER": "1"})
    results = executor.run(trains, kwargs={"folder": str(tmp_path), "killed": killed, "encrypted": encrypted})
    executor.shutdown()
    assert [rank for rank, _, _ in results] == [0, 1, 2]
    sizes = results[0][2]
    assert all(result[1:] == (float(len(sizes)), sizes) for result in results)
    assert sizes[:5] == [3] * 5 and set(sizes[5:-1]) == {2} and sizes[-1] == 3
    told = caplog.text
    assert re.search(rf"rank {killed} .* has ended: ActorDiedError: The actor died.*; 2 ranks are left", told)
    assert "generation 1 has 2 ranks" in told and "rank 3 was started" in told and "generation 2 has 3 ranks" in told


def fails(folder: str) -> None:
    raise FileNotFoundError(f"no such file: {folder}")


def test_a_job_that_cannot_go_on(ray: Any) -> None:
    executor = ElasticRayExecutor(PATIENT, min_workers=3, max_workers=3, elastic_timeout=120)
    with pytest.raises(
        ddl.RankFailed, match="no rank is left that holds the state.*has ended: FileNotFoundError: no such file: data"
    ) as caught:
        executor.run(fails, ("data",))
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_nodes_that_do_not_come(ray: Any) -> None:
    executor = ElasticRayExecutor(PATIENT, min_workers=4, elastic_timeout=1)
    with pytest.raises(ddl.RankFailed, match="begins with 4 ranks, .*elastic_timeout.* lower min_workers"):
        executor.run(fails, ("data",))
