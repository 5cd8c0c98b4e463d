"""``ddl.spark.run``: a function on ranks that are the tasks of one barrier stage; the driver has the job's store."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import uuid
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import ddl
from ddl.adapter.joining import Settings, call_as_rank
from ddl.errors import InvalidArgument, InvalidState, NotSupported, RendezvousError
from ddl.spark.slots import check_slots

__all__ = ["run", "run_elastic"]

_START_TIMEOUT = 600.0  #: seconds, as Horovod's
_GROUP = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")  # of the calling thread's jobs


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Optional[Mapping[str, Any]] = None,
    num_proc: Optional[int] = None,
    start_timeout: Optional[float] = None,
    use_mpi: Optional[bool] = None,
    use_gloo: Optional[bool] = None,
    extra_mpi_args: Optional[str] = None,
    env: Optional[Mapping[str, str]] = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    executable: Optional[str] = None,
) -> List[Any]:
    """Call ``fn(*args, **kwargs)`` on each of ``num_proc`` ranks, tasks of the active SparkContext; return the results.

    Blocking. The results are in rank order. DDL is initialised when ``fn`` begins, and shut down when it ends; a call
    of ``ddl.init()`` does nothing. Ranks of a host follow one another. Spark pickles ``fn``, arguments and results.

    num_proc: default is ``spark.default.parallelism``. start_timeout: seconds in which Spark has to start the tasks
    (default 600), and the ranks to meet (default DDL_START_TIMEOUT). env: variables of the ranks, while fn runs.
    verbose: 0 says nothing, 1 says how many ranks there are if ``num_proc`` does not. The others are Horovod's and have
    no effect here, which stderr says: output is where Spark puts its workers' output, nics are DDL_INTERFACE in
    ``env``, and the workers' Python is Spark's setting PYSPARK_PYTHON.

    When a rank fails, Spark ends the others, and ``RankFailed`` names the rank and the cause; Spark's error is its
    ``__cause__``. Raises ``InvalidArgument`` if Spark can never run so many tasks at once, and for arguments that make
    no sense, ``ConfigError`` for a wrong value of DDL's in ``env`` and with dynamic allocation, ``RendezvousError`` if
    the tasks do not start in time, ``InvalidState`` without a SparkContext.

    >>> ddl.spark.run(lambda: ddl.rank(), num_proc=2)
    [0, 1]
    """
    idle = {"use_mpi": use_mpi, "use_gloo": use_gloo, "extra_mpi_args": extra_mpi_args, "stdout": stdout}
    idle.update(stderr=stderr, nics=nics, executable=executable)
    idle.update(prefix_output_with_timestamp=prefix_output_with_timestamp or None)
    _say_idle([name for name, value in idle.items() if value is not None])
    context = _active_context()
    size = context.defaultParallelism if num_proc is None else num_proc
    if type(size) is not int or size < 1:
        raise InvalidArgument(f"ddl.spark.run: num_proc={num_proc!r}; say how many ranks, as num_proc=2")
    if not callable(fn):
        raise InvalidArgument(f"ddl.spark.run: fn={fn!r:.100}; it is the function that each rank calls")
    variables = _variables(env, start_timeout)
    if num_proc is None and verbose:
        print(f"ddl.spark.run: {size} ranks, as spark.default.parallelism says", file=sys.stderr)
    check_slots(context, size)
    limit = _START_TIMEOUT if start_timeout is None else start_timeout
    with _StartTimeout(context, size, limit) as deadline, ddl.JobStore(size) as store:
        task = _SparkTask(store.invitation, variables, fn, tuple(args), dict(kwargs or {}))
        stage = context.parallelize(range(size), size).barrier().mapPartitions(task)
        context.setJobGroup(deadline.group, "ddl.spark.run", interruptOnCancel=True)
        answers: List[Tuple[int, Any]] = stage.collect()
    return [result for _, result in sorted(answers, key=lambda answer: answer[0])]


def run_elastic(*args: Any, **kwargs: Any) -> List[Any]:
    """Raise ``NotSupported``: a barrier stage has the ranks that it begins with, and one that fails ends it."""
    raise NotSupported(
        "ddl.spark.run_elastic: the tasks of a barrier stage all start and end together, so ranks cannot come and go "
        "in Spark. Call ddl.spark.run again when it raises RankFailed, from your last checkpoint; or start the script "
        "by ddlrun --min-np on the hosts (docs/elastic.md)"
    )


def _say_idle(names: Sequence[str]) -> None:
    if names:
        verb = "has" if len(names) == 1 else "have"
        print(f"ddl.spark.run: {', '.join(names)} {verb} no effect (docs/spark.md)", file=sys.stderr)


def _variables(env: Optional[Mapping[str, str]], start_timeout: Optional[float]) -> Dict[str, str]:
    """Return the variables of the ranks. What is wrong is said here, and not by each task."""
    variables = dict(env or {})
    for name, value in variables.items():
        if not isinstance(value, str):
            raise InvalidArgument(
                f"ddl.spark.run: env has {name}={value!r:.100}; values are texts, as {str(value)!r:.100}"
            )
    if start_timeout is not None:
        if not start_timeout > 0:
            raise InvalidArgument(f"ddl.spark.run: start_timeout={start_timeout!r}; it is more than 0 seconds")
        variables.setdefault("DDL_START_TIMEOUT", f"{start_timeout:g}")
    Settings.from_environ(variables)
    return variables


def _active_context() -> Any:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        raise InvalidState(
            "ddl.spark.run: this process has no SparkContext; make a SparkSession first (one of Spark Connect has none)"
        )
    return context


class _SparkTask:
    """What each task does; Spark pickles it."""

    def __init__(
        self,
        invitation: str,
        variables: Mapping[str, str],
        fn: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> None:
        self._invitation, self._variables = invitation, variables
        self._fn, self._args, self._kwargs = fn, args, kwargs

    def __call__(self, _: Iterator[int]) -> Iterator[Tuple[int, Any]]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        hosts = [info.address.rpartition(":")[0] or info.address for info in context.getTaskInfos()]
        order = tasks_by_host(hosts)
        rank = order.index(context.partitionId())
        place = ddl.Rendezvous(rank, len(order), self._invitation, [hosts[task] for task in order], "Spark")
        with _environment(self._variables):
            result = call_as_rank(place, self._fn, *self._args, **self._kwargs)
        yield rank, result


def tasks_by_host(hosts: Sequence[str]) -> List[int]:
    """Return the tasks in the order of their ranks: those of a host follow one another; task t is on ``hosts[t]``."""
    first = {host: hosts.index(host) for host in hosts}
    return sorted(range(len(hosts)), key=lambda task: (first[hosts[task]], task))


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while: Spark uses its workers again."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _StartTimeout:
    """Cancels the jobs of a group if no task of them has started in time; raises ``RendezvousError`` then, at the end.

    Spark would wait for ever where executors do not come, or other jobs have all slots.
    """

    def __init__(self, context: Any, size: int, seconds: float) -> None:
        self.group = f"ddl.spark.run-{uuid.uuid4()}"
        self._context, self._size, self._seconds = context, size, seconds
        self._late = False
        self._timer = threading.Timer(seconds, self._look)
        self._timer.daemon = True

    def __enter__(self) -> _StartTimeout:
        self._before = {name: self._context.getLocalProperty(name) for name in _GROUP}
        self._timer.start()
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        self._timer.cancel()
        for name, value in self._before.items():  # setJobGroup has changed them
            self._context.setLocalProperty(name, value)
        if self._late and isinstance(error, Exception):
            raise RendezvousError(
                f"ddl.spark.run: Spark did not start the {self._size} tasks within {self._seconds:g} s: it needs so "
                "many free slots at the same time. Look for executors that do not come and for other jobs that run; "
                "give Spark more cores, ask for fewer ranks, or wait longer (start_timeout)"
            ) from error

    def _look(self) -> None:
        if not self._started():
            self._late = True
            self._context.cancelJobGroup(self.group)

    def _started(self) -> bool:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self.group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return any(
            stage is not None and stage.numActiveTasks + stage.numCompletedTasks + stage.numFailedTasks > 0
            for stage in stages
        )
