"""``RayExecutor``: functions on many ranks, each of which is an actor of Ray, by the names of ``horovod.ray``.

The job's store is in the program that has the executor, so that it can say which rank has failed. The actors stay from
``start`` to ``shutdown``, and so does the job, unless it fails: then the next call begins a new one in the same actors.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Type

import ray
from ray.exceptions import GetTimeoutError, RayError

import ddl
from ddl.errors import InvalidState, RankFailed, RendezvousError
from ddl.ray.placement import RaySettings, Workers, node_first, reserve

__all__ = ["RayExecutor"]

_LEAVES = 10.0  # seconds that an actor has to leave its job before it is killed
_OWN_ERROR = 2.0  # seconds that the rank which failed has to tell Ray so, once another one has
_GPUS = "CUDA_VISIBLE_DEVICES"


class _ActorPlace(NamedTuple):
    node: str
    gpus: List[str]


class _RankActor:
    """The actor: a process that is a rank of one job after the other."""

    def __init__(self) -> None:
        self._rendezvous: Optional[ddl.Rendezvous] = None
        self._executable: Any = None

    def place(self) -> _ActorPlace:
        context = ray.get_runtime_context()
        return _ActorPlace(context.get_node_id(), [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])])

    def set_environ(self, environ: Dict[str, str]) -> None:
        os.environ.update(environ)

    def make_executable(self, kind: Type[Any], args: Sequence[Any], kwargs: Dict[str, Any]) -> None:
        self._executable = kind(*args, **kwargs)

    def execute(self, function: Callable[[Any], Any]) -> Any:
        return function(self._executable)

    def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    def as_rank(self, rendezvous: ddl.Rendezvous, method: str, *args: Any) -> Any:
        """Call another method as a rank of a job: that of the last call, or a new one."""
        if rendezvous != self._rendezvous:
            ddl.shutdown()
            self._rendezvous = rendezvous
        ddl.init(rendezvous=rendezvous)
        try:
            return getattr(self, method)(*args)
        except BaseException as error:
            if ddl.is_initialized():
                ddl.abort(f"{type(error).__name__}: {error}")
            raise

    def leave(self) -> None:
        ddl.shutdown()


class RayExecutor:
    """Run functions on ranks that are actors of Ray, as ``horovod.ray.RayExecutor`` does.

    settings: of ``create_settings``. Give ``num_workers``, which Ray packs on few nodes, or ``num_hosts`` and
    ``num_workers_per_host``, each host another node. Each actor gets ``cpus_per_worker`` and, with ``use_gpu``,
    ``gpus_per_worker`` (default 1); actors of a node see all GPUs of them, so ``ddl.local_rank()`` is a device.
    ``use_current_placement_group``: inside a placement group, as in a trial of Tune, use its resources.

    Ranks of a node have consecutive numbers, those of this program's node come first. Raises ``InvalidArgument`` for
    numbers that make no sense.

    >>> executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
    >>> executor.start()
    >>> losses = executor.run(train, kwargs={"epochs": 3})
    >>> executor.shutdown()
    """

    def __init__(
        self,
        settings: Optional[RaySettings] = None,
        num_workers: Optional[int] = None,
        num_hosts: Optional[int] = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: Optional[float] = None,
        use_current_placement_group: bool = True,
    ) -> None:
        gpus = (1 if gpus_per_worker is None else gpus_per_worker) if use_gpu else 0
        self._workers = Workers.asked(num_workers, num_hosts, num_workers_per_host, cpus_per_worker, gpus)
        self._settings = settings or RaySettings()
        self._use_current = use_current_placement_group
        self._group: Any = None
        self._ranks: List[Any] = []  # actors, by rank
        self._hosts: List[str] = []
        self._store: Optional[ddl.JobStore] = None

    @staticmethod
    def create_settings(timeout_s: float = 30, placement_group_timeout_s: float = 100) -> RaySettings:
        """Return what the first argument is: how long to wait; see ``RaySettings``."""
        return RaySettings(timeout_s, placement_group_timeout_s)

    def start(
        self,
        executable_cls: Optional[Type[Any]] = None,
        executable_args: Optional[Sequence[Any]] = None,
        executable_kwargs: Optional[Dict[str, Any]] = None,
        extra_env_vars: Optional[Dict[str, str]] = None,
    ) -> None:
        """Start the actors, let them join a job, and make an ``executable_cls`` in each, for ``execute``.

        ``extra_env_vars`` are set in all actors. Raises ``RendezvousError`` if resources are missing or actors do not
        start in time, and what ``run`` raises.
        """
        if self._ranks:
            raise InvalidState("RayExecutor: start() was called twice; call shutdown() in between")
        try:
            self._start_actors(extra_env_vars or {})
            if executable_cls is None:
                self.run(ddl.barrier)
            else:
                self._results(
                    self._call("make_executable", executable_cls, executable_args or (), executable_kwargs or {})
                )
        except BaseException:
            self.shutdown()
            raise

    def _start_actors(self, extra: Dict[str, str]) -> None:
        patience = self._settings.placement_group_timeout_s
        strategies, self._group = reserve(self._workers, self._use_current, patience)
        options = {"num_cpus": self._workers.cpus, "num_gpus": self._workers.gpus}
        kind = ray.remote(_RankActor)
        self._ranks = [kind.options(scheduling_strategy=where, **options).remote() for where in strategies]
        try:
            places: List[_ActorPlace] = ray.get([rank.place.remote() for rank in self._ranks], timeout=patience)
        except GetTimeoutError as error:
            raise RendezvousError(
                f"RayExecutor: not all of {len(self._ranks)} actors, each with {self._workers.resources}, have started "
                f"within {patience:g} s (placement_group_timeout_s): is there room in this placement group?"
            ) from error
        order = node_first([place.node for place in places], ray.get_runtime_context().get_node_id())
        self._ranks, places = [self._ranks[index] for index in order], [places[index] for index in order]
        self._hosts = [place.node for place in places]
        for rank, place in zip(self._ranks, places):
            environ = {"DDL_START_TIMEOUT": f"{self._settings.timeout_s:g}"}
            gpus = sorted({gpu for other in places if other.node == place.node for gpu in other.gpus}, key=_number)
            rank.set_environ.remote({**environ, **({_GPUS: ",".join(gpus)} if gpus else {}), **extra})

    def run(
        self,
        fn: Callable[..., Any],
        args: Optional[Sequence[Any]] = None,
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> List[Any]:
        """Call ``fn`` on all ranks and return their results, by rank. It need not call ``ddl.init()``, but may.

        If a rank fails, the others end at once, and this raises a ``RankFailed`` that names the rank and says why. Its
        cause is Ray's error.
        """
        return self._results(self.run_remote(fn, args, kwargs))

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Optional[Sequence[Any]] = None,
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> List[Any]:
        """As ``run``, without blocking: return Ray's references. ``ray.get`` raises Ray's error; see ``failure``."""
        return self._call("run", fn, args or (), kwargs or {})

    def execute(self, fn: Callable[[Any], Any]) -> List[Any]:
        """Call ``fn`` with the executable of each rank, and return the results, by rank. Raises what ``run`` does."""
        return self._results(self._call("execute", fn))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call ``fn`` with the executable of rank 0 only, and return the result. Raises Ray's error."""
        self._check_started()
        return ray.get(self._ranks[0].execute.remote(fn))

    @property
    def failure(self) -> Optional[RankFailed]:
        """Why the job has failed, if it has, and which rank: for users of ``run_remote``."""
        return None if self._store is None else self._store.failure

    def shutdown(self) -> None:
        """End the actors. Idempotent."""
        ranks, self._ranks = self._ranks, []
        left = [rank.leave.remote() for rank in ranks]
        if left:
            ray.wait(left, num_returns=len(left), timeout=_LEAVES)
        for rank in ranks:
            ray.kill(rank)
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
            self._group = None
        self._end_job()

    def _check_started(self) -> None:
        if not self._ranks:
            raise InvalidState("RayExecutor: there are no actors; call start() first")

    def _end_job(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _call(self, method: str, *args: Any) -> List[Any]:
        self._check_started()
        if self.failure is not None:
            self._end_job()
        size = len(self._ranks)
        self._store = self._store or ddl.JobStore(size)
        who = [ddl.Rendezvous(rank, size, self._store.invitation, self._hosts, "Ray") for rank in range(size)]
        shared = [ray.put(arg) for arg in args]  # once, not once for each actor
        return [actor.as_rank.remote(rank, method, *shared) for actor, rank in zip(self._ranks, who)]

    def _results(self, references: List[Any]) -> List[Any]:
        try:
            results: List[Any] = ray.get(references)
            return results
        except RayError as error:
            first = error
        store, self._store = self._store, None
        assert store is not None
        with store:  # it names the rank
            raise _error_of(store.failure, references) or first


def _number(gpu: str) -> Any:
    return (0, int(gpu), "") if gpu.isdigit() else (1, 0, gpu)


def _error_of(failure: Optional[RankFailed], references: List[Any]) -> Optional[RayError]:
    """Return what Ray says of the rank with which a failure began: others may have told of it first."""
    if failure is None or failure.rank < 0:
        return None
    own = references[failure.rank]
    ready, _ = ray.wait([own], timeout=_OWN_ERROR)
    try:
        ray.get(ready)
    except RayError as error:
        return error
    return None
