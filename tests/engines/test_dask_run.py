"""``ddl.dask.run`` on a real cluster of Dask's: two workers, which are processes, and live on from job to job."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any, Iterator, Tuple

import numpy as np
import pytest
from documents import ROOT
from process_groups import run

distributed = pytest.importorskip("distributed", reason="Dask is not installed; make test-full installs it")

import ddl  # noqa: E402
import ddl.dask  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = {"n_workers": 2, "threads_per_worker": 2, "processes": True, "dashboard_address": None}
    folder = str(tmp_path_factory.mktemp("dask"))
    with distributed.LocalCluster(**options, host="127.0.0.1", local_directory=folder) as cluster:
        with distributed.Client(cluster) as client:
            client.wait_for_workers(2, timeout=100)
            yield client


def summed(value: int, *, more: int) -> Tuple[int, int, int, float]:
    total = ddl.allreduce(np.array([value + ddl.rank()]), op=ddl.Sum)
    return ddl.rank(), ddl.size(), ddl.local_rank(), int(total.item()) + more


def test_results_come_by_rank_and_workers_are_used_again(client: Any) -> None:
    for value in (1, 5):
        results = ddl.dask.run(client, summed, args=(value,), kwargs={"more": 100})
        assert results == [(rank, 2, rank, 2 * value + 101) for rank in range(2)]
    assert ddl.dask.run(client, summed, args=(1,), kwargs={"more": 0}, num_proc=1) == [(0, 1, 0, 1)]
    (last,) = list(client.scheduler_info(n_workers=-1)["workers"])[1:]
    assert ddl.dask.run(client, os.getpid, workers=[last]) == [client.submit(os.getpid, workers=[last]).result()]


def failing(how: str) -> None:
    ddl.barrier()
    if ddl.rank() == 1:
        if how == "raise":
            raise KeyError("wrong row")
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        ddl.barrier()


def test_a_function_that_raises_is_named_by_its_rank(client: Any) -> None:
    with pytest.raises(ddl.RankFailed, match=r"rank 1 of 2 \(host .+\) failed: .*KeyError: 'wrong row'") as caught:
        ddl.dask.run(client, failing, args=("raise",))
    assert caught.value.__cause__ is not None
    assert len(ddl.dask.run(client, summed, args=(1,), kwargs={"more": 0})) == 2  # both workers are whole


def test_a_worker_that_is_killed_is_named_by_its_rank(client: Any) -> None:
    """Dask itself would start another worker, and wait for the one that is gone."""
    with pytest.raises(ddl.RankFailed, match=r"rank 1 of 2 \(host .+\) failed: PeerLost"):
        ddl.dask.run(client, failing, args=("kill",))
    client.wait_for_workers(2, timeout=100)
    assert len(ddl.dask.run(client, summed, args=(1,), kwargs={"more": 0})) == 2


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_without_other_ranks(client: Any) -> None:
    first = list(client.scheduler_info(n_workers=-1)["workers"])[:1]
    with pytest.raises(ddl.RankFailed, match="rank 0 of 1 failed: "):
        ddl.dask.run(client, killed, workers=first)
    client.wait_for_workers(2, timeout=100)


def busy_in_this_worker() -> None:
    ddl.dask.run(distributed.get_client(), os.getpid, workers=[distributed.get_worker().address])


def test_a_worker_is_in_one_job_at_a_time(client: Any) -> None:
    first = list(client.scheduler_info(n_workers=-1)["workers"])[:1]
    with pytest.raises(ddl.InvalidState, match="the worker of rank 0 is a rank of another job; wait for that"):
        ddl.dask.run(client, busy_in_this_worker, workers=first)


@pytest.mark.parametrize("number", [0, 3, "2"])
def test_too_many_ranks_are_refused(client: Any, number: Any) -> None:
    with pytest.raises(ddl.InvalidArgument, match=f"num_proc={number!r}, and Dask has 2 workers for it"):
        ddl.dask.run(client, summed, num_proc=number)


def test_the_example_trains_to_one_result(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the example's data are in scikit-learn; make test installs it")
    printed = run([str(ROOT / "examples" / "dask_digits.py"), "--steps", "100"], tmp_path)
    results = re.findall(r"rank (\d) of 2: accuracy (0\.\d+), the same weights as rank 0", printed)
    assert [rank for rank, _ in results] == ["0", "1"] and float(results[0][1]) > 0.85, printed
