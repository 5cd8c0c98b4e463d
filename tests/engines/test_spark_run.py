"""``ddl.spark.run`` on a real Spark with two executors, and what it refuses before Spark is asked."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Optional, Tuple

import local_spark
import pytest

import ddl
import ddl.spark
from ddl.spark.runner import tasks_by_host
from ddl.spark.slots import check_slots

# --- what is refused before Spark is asked: no session here yet ---


@pytest.mark.parametrize(
    ("hosts", "order"),
    [("a", [0]), ("ab", [0, 1]), ("aba", [0, 2, 1]), ("babca", [0, 2, 1, 4, 3]), ("zzaaz", [0, 1, 4, 2, 3])],
)
def test_ranks_of_a_host_follow_one_another(hosts: str, order: List[int]) -> None:
    assert tasks_by_host(list(hosts)) == order


def context(master: str, **settings: str) -> Any:
    """What of a SparkContext is asked, without Java."""
    values: Dict[str, str] = {name.replace("_", "."): value for name, value in settings.items()}
    return SimpleNamespace(master=master, getConf=lambda: values)


@pytest.mark.parametrize(
    ("master", "settings", "most"),
    [
        ("local", {}, 1),
        ("local[3]", {}, 3),
        ("local[5, 4]", {"spark_task_cpus": "2"}, 2),
        ("local[*]", {}, os.cpu_count()),
        ("local-cluster[2, 3, 1024]", {"spark_task_cpus": "2"}, 2),
        ("yarn", {"spark_executor_instances": "3", "spark_executor_cores": "4"}, 12),
        ("yarn", {"spark_executor_instances": "3"}, None),
        ("spark://host:7077", {}, None),
    ],
)
def test_slots_that_there_can_be(master: str, settings: Dict[str, str], most: Optional[int]) -> None:
    check_slots(context(master, **settings), most or 1000)
    if most is not None:
        with pytest.raises(ddl.InvalidArgument, match=f"num_proc={most + 1}, but Spark runs at most {most} tasks"):
            check_slots(context(master, **settings), most + 1)


def test_dynamic_allocation_is_refused() -> None:
    dynamic = {"spark_dynamicAllocation_enabled": "true"}
    with pytest.raises(ddl.ConfigError, match="spark.dynamicAllocation.enabled=true: .*SPARK-24942"):
        check_slots(context("yarn", **dynamic), 1)
    check_slots(context("local[2]", **dynamic), 2)  # Spark does not look at it there


def test_elastic_says_what_to_do() -> None:
    with pytest.raises(ddl.NotSupported, match="ddl.spark.run again.*ddlrun --min-np"):
        ddl.spark.run_elastic(averages, min_num_proc=1)


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"fn": "train"}, ddl.InvalidArgument, "fn='train'; it is the function"),
        ({"num_proc": 0}, ddl.InvalidArgument, "num_proc=0; say how many"),
        ({"start_timeout": 0}, ddl.InvalidArgument, "start_timeout=0; it is more than 0 s"),
        ({"env": {"DDL_TIMEOUT": 60}}, ddl.InvalidArgument, "env has DDL_TIMEOUT=60; values are texts, as '60'"),
        ({"env": {"DDL_TIMEOUT": "soon"}}, ddl.ConfigError, "DDL_TIMEOUT"),
    ],
)
def test_arguments_that_make_no_sense(
    arguments: Dict[str, Any], kind: Any, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddl.spark.runner._active_context", lambda: context("local[2]"))
    with pytest.raises(kind, match=match):
        ddl.spark.run(**{"fn": averages, "num_proc": 2, **arguments})


def test_without_a_session() -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed (pip install pyspark)")
    with pytest.raises(ddl.InvalidState, match="has no SparkContext"):
        ddl.spark.run(averages, (1.0,), num_proc=2)


# --- a real Spark ---

real = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.timeout(900),
]  # Java starts within minutes on a busy machine


def marked(test: Any) -> Any:
    for mark in real:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with local_spark.session("local-cluster[2,1,1024]", tmp_path_factory.mktemp("spark")) as session:
        local_spark.pickle_by_value(__name__)
        yield session


def averages(value: float, more: float = 0) -> Tuple[Any, ...]:
    import os

    import numpy as np

    import ddl

    ddl.init()  # does nothing
    mean = ddl.allreduce(np.array([value + more + ddl.rank()])).item()
    place = (ddl.rank(), ddl.size(), ddl.local_rank(), ddl.local_size(), ddl.cross_rank(), ddl.cross_size())
    return (mean, place, os.environ.get("COLOUR"), os.getpid())


@marked
def test_results_are_in_rank_order_and_workers_are_used_again(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Both executors are on this host, as their addresses say."""
    spark.sparkContext.setJobGroup("mine", "the user's")
    first = ddl.spark.run(
        averages, (3.0,), {"more": 1.0}, num_proc=2, env={"COLOUR": "red"}, nics=["lo"], use_gloo=True
    )
    assert [answer[:3] for answer in first] == [(4.5, (0, 2, 0, 2, 0, 1), "red"), (4.5, (1, 2, 1, 2, 0, 1), "red")]
    second = ddl.spark.run(averages, (5.0,), num_proc=2)
    assert [answer[:3] for answer in second] == [(5.5, (0, 2, 0, 2, 0, 1), None), (5.5, (1, 2, 1, 2, 0, 1), None)]
    assert {answer[3] for answer in first} == {answer[3] for answer in second}
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "mine"
    assert "ddl.spark.run: use_gloo, nics have no effect" in capfd.readouterr().err


def is_killed() -> None:
    import os
    import signal

    import ddl

    ddl.barrier()
    if ddl.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ddl.barrier()


@marked
@pytest.mark.faults
def test_a_killed_task_is_named_in_the_driver(spark: Any) -> None:
    with pytest.raises(ddl.RankFailed, match=r"^rank 1 of 2 \(host .+\) failed: PeerLost: its process") as caught:
        ddl.spark.run(is_killed, num_proc=2)
    assert caught.value.rank == 1
    assert "barrier" in str(caught.value.__cause__)  # what Spark says
    assert [answer[0] for answer in ddl.spark.run(averages, (1.0,), num_proc=2)] == [1.5, 1.5]


def raises(path: str) -> None:
    import ddl

    if ddl.rank() == 1:
        open(path)
    ddl.barrier()


@marked
@pytest.mark.faults
def test_what_a_rank_raises_is_shown_in_the_driver(spark: Any, tmp_path: Path) -> None:
    missing = f"{tmp_path}/no_such_data"
    with pytest.raises(
        ddl.RankFailed, match=rf"^rank 1 of 2 \(host .+\) failed: Aborted: .*FileNotFoundError.*{missing}"
    ) as caught:
        ddl.spark.run(raises, (missing,), num_proc=2)
    assert missing in str(caught.value.__cause__)


@marked
def test_too_few_slots(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ddl.InvalidArgument, match=r"num_proc=3, but Spark runs at most 2 tasks .*SPARK-24819"):
        ddl.spark.run(averages, (1.0,), num_proc=3)
    started, end = tmp_path / "started", tmp_path / "end"

    def wait(_: int) -> None:
        import time
        from pathlib import Path

        Path(started).touch()
        deadline = time.monotonic() + 600
        while not Path(end).exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    other = threading.Thread(target=lambda: spark.sparkContext.parallelize(range(1), 1).foreach(wait))
    other.start()
    try:
        while not started.exists():
            assert other.is_alive()
            time.sleep(0.05)
        with pytest.raises(ddl.RendezvousError, match="did not start the 2 tasks within 1 s.*other jobs"):
            ddl.spark.run(averages, (1.0,), num_proc=2, start_timeout=1)
    finally:
        end.touch()
        other.join()


@marked
def test_the_number_of_ranks_is_sparks(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(ddl.spark.run(averages, (1.0,))) == spark.sparkContext.defaultParallelism
    assert "2 ranks, as spark.default.parallelism says" in capfd.readouterr().err
