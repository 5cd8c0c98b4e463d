"""A real Ray on this machine, for tests: ``with local_ray.started(cpus=4)``."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest

#: Of the actors' CPUs, none is real: tests may ask for more than this machine has.
_CPUS = 4
_MEMORY = 100 << 20  # bytes of Ray's object store, which is in shared memory


@contextlib.contextmanager
def started(cpus: int = _CPUS, **options: Any) -> Iterator[Any]:
    """Start Ray with so many CPUs, and end it. The functions of the calling module go to actors by value."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ().items():
            patch.setenv(name, value)
        import ray

        _by_value(ray)
        with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:  # noqa: S108
            ray.init(
                address="local",  # a new one, whatever else runs here
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=_MEMORY,
                _temp_dir=folder,  # a short name: paths of Unix sockets have a limit
                **options,
            )
            try:
                yield ray
            finally:
                ray.shutdown()


@contextlib.contextmanager
def nodes(*cpus: int) -> Iterator[Any]:
    """Start Ray with several nodes on this machine, each with so many CPUs; yield its ``ray.cluster_utils.Cluster``."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ().items():
            patch.setenv(name, value)
        import ray
        from ray.cluster_utils import Cluster

        _by_value(ray)
        cluster = Cluster()
        try:
            for count in cpus:
                cluster.add_node(**node(count))
            ray.init(address=cluster.address)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def node(cpus: int) -> Dict[str, Any]:
    """Return the arguments of a node of ``nodes``."""
    return {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": _MEMORY}


def _by_value(ray: Any) -> None:
    for name in [name for name in sys.modules if name.rpartition(".")[2].startswith("test_ray")]:
        ray.cloudpickle.register_pickle_by_value(sys.modules[name])  # actors have no tests on their path


def environ() -> Dict[str, str]:
    """Return variables for Ray: this checkout for its processes, nothing told to anybody, no password."""
    return {
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
    }
