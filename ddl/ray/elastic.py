"""``ElasticRayExecutor``: a job in Ray whose ranks come and go with Ray's nodes, by the names of ``horovod.ray``.

Each rank is an actor. The program that has the executor asks Ray for its nodes each second, and ddl/adapter decides, as
ddlrun does, which actors there are: where one is lost, another one starts; where a node comes, actors start there.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ddl
from ddl import clock
from ddl.adapter.elastic_driver import ElasticDriver
from ddl.errors import RankFailed
from ddl.ray.placement import RaySettings, Workers

__all__ = ["ElasticRayExecutor"]

_NODES = 1.0  # seconds between two questions for Ray's nodes
_TURN = 0.1  # seconds between two looks at what has happened
#: The options of ddlrun, in what it tells, and what they are called here.
_CALLED = {
    "--min-np": "min_workers",
    "-np": "min_workers",
    "--max-np": "max_workers",
    "--elastic-timeout": "elastic_timeout",
    "--reset-limit": "reset_limit",
    "--host-discovery-script": "ray.nodes()",
}
_log = logging.getLogger("ddl")


class _ElasticActor:
    """A rank of one job: a process that has left an elastic job does not come back."""

    def run(
        self, environ: Dict[str, str], function: Callable[..., Any], args: Sequence[Any], kwargs: Dict[str, Any]
    ) -> Tuple[int, Any]:
        """Return the last number of this rank, and what the function returns."""
        os.environ.update(environ)
        ddl.init()
        result = function(*args, **kwargs)  # if it raises, the executor ends this process
        rank = ddl.rank()
        ddl.shutdown()
        return rank, result


class ElasticRayExecutor:
    """Run a function on ranks that come and go: actors of Ray. The function uses ``ddl.elastic`` (docs/elastic.md).

    settings: of ``RayExecutor.create_settings``; its ``timeout_s`` is used. The job begins when Ray's nodes have CPUs
    for ``min_workers`` ranks, each ``cpus_per_worker`` and with ``use_gpu`` ``gpus_per_worker``, and takes up to
    ``max_workers`` (None: all that fit). With fewer than ``min_workers`` it waits ``elastic_timeout`` seconds for
    more. ``reset_limit``: how often ranks may go on with others. ``cooldown_range``: seconds that a node on which a
    rank has failed gets no other. Raises ``InvalidArgument`` for numbers that make no sense.

    >>> executor = ElasticRayExecutor(min_workers=2, max_workers=8)
    >>> losses = executor.run(train)
    """

    def __init__(
        self,
        settings: Optional[RaySettings] = None,
        min_workers: int = 1,
        max_workers: Optional[int] = None,
        reset_limit: Optional[int] = None,
        cooldown_range: Optional[Tuple[float, float]] = None,
        elastic_timeout: float = 600,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: Optional[float] = None,
    ) -> None:
        gpus = (1 if gpus_per_worker is None else gpus_per_worker) if use_gpu else 0
        self._workers = Workers.asked(min_workers, None, 1, cpus_per_worker, gpus)
        self._settings = settings or RaySettings()
        self._limits = (min_workers, max_workers, elastic_timeout, reset_limit, cooldown_range)
        self._environ: Dict[str, str] = {}

    def start(self, extra_env_vars: Optional[Dict[str, str]] = None) -> None:
        """Note variables for all actors. They start in ``run``, when the nodes are known."""
        self._environ = dict(extra_env_vars or {})

    def run(
        self, fn: Callable[..., Any], args: Optional[Sequence[Any]] = None, kwargs: Optional[Dict[str, Any]] = None
    ) -> List[Any]:
        """Call ``fn`` on all ranks until it returns; return the results of the last ranks, by rank. Blocks.

        Raises ``RankFailed``, with Ray's error as its cause, if the job cannot go on.
        """
        environ = {"DDL_START_TIMEOUT": f"{self._settings.timeout_s:g}", **self._environ}
        with_all = [ray.put(part) for part in (fn, args or (), kwargs or {})]
        course = _Course(self._workers, self._limits, environ, with_all)
        try:
            return course.run()
        finally:
            course.close()

    def shutdown(self) -> None:
        """Nothing is left to end after ``run``: for scripts that call it."""


class _Course:
    """One job, in Ray: the ``EngineProcesses`` of an ``ElasticDriver``."""

    def __init__(self, workers: Workers, limits: Tuple[Any, ...], environ: Dict[str, str], call: List[Any]) -> None:
        least, most, *others = limits
        self._workers, self._environ, self._function = workers, environ, call
        self._driver = ElasticDriver(self, ray.util.get_node_ip_address(), least, most, *others)
        self._actors: Dict[int, Any] = {}
        self._calls: Dict[Any, int] = {}  # reference -> number of the process
        self._nodes: Dict[str, str] = {}  # name -> Ray's id
        self._errors: Dict[int, RayError] = {}
        self._results: List[Tuple[int, Any]] = []

    def run(self) -> List[Any]:
        asked = -_NODES
        while self._driver.look():
            if clock.now() - asked >= _NODES:
                asked = clock.now()
                self._driver.see(self._room())
            if self._calls:
                for call in ray.wait(list(self._calls), timeout=_TURN)[0]:
                    self._end(call)
            else:
                time.sleep(_TURN)
        failure = self._driver.failure()
        if failure is not None:
            raise RankFailed(failure.rank, _in_words_of_ray(str(failure))) from self._errors.get(failure.rank)
        return [result for _, result in sorted(self._results, key=lambda pair: pair[0])]

    def _room(self) -> Dict[str, int]:
        """Return how many ranks each node has room for."""
        own = ray.get_runtime_context().get_node_id()
        nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeID"] != own)
        self._nodes = {f"{node['NodeManagerHostname']}/{node['NodeID'][:6]}": node["NodeID"] for node in nodes}
        need = [(name, amount) for name, amount in self._workers.resources.items() if amount]
        rooms = [min(int(node["Resources"].get(name, 0) / amount) for name, amount in need) for node in nodes]
        return dict(zip(self._nodes, rooms))

    def _end(self, call: Any) -> None:
        number = self._calls.pop(call)
        try:
            self._results.append(ray.get(call))
        except RayError as error:
            self._errors[number] = error
            raised = error.cause if isinstance(error, RayTaskError) else error
            first_line = str(raised).strip().partition("\n")[0].rstrip(".")
            text = f"{type(raised).__name__}: {first_line}"
        else:
            text = ""
        ray.kill(self._actors.pop(number))  # what it still has: others must see that it is gone
        self._driver.ended(number, text or "its function has returned", well=not text)

    def close(self) -> None:
        self._driver.close()

    # --- EngineProcesses ---

    def start(self, number: int, host: str, environ: Dict[str, str]) -> None:
        where = NodeAffinitySchedulingStrategy(self._nodes[host], soft=False)
        options = {"num_cpus": self._workers.cpus, "num_gpus": self._workers.gpus, "scheduling_strategy": where}
        actor = ray.remote(_ElasticActor).options(**options).remote()
        self._actors[number] = actor
        self._calls[actor.run.remote({**self._environ, **environ}, *self._function)] = number

    def end(self, number: int) -> None:
        if number in self._actors:
            ray.kill(self._actors[number])

    def tell(self, text: str) -> None:
        _log.warning("%s", _in_words_of_ray(text))


def _in_words_of_ray(text: str) -> str:
    for option, name in _CALLED.items():
        text = text.replace(option, name)
    return text
