"""The launchers of jobs in pods of Kubernetes, by the names of ``--launcher``: what they ask of the other options.

``--launcher k8s`` prints the manifest (k8s.py), and ``--launcher pods`` is what the manifest has each pod run
(ddl/launch/job/pods.py).
"""

from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping, Optional, Tuple, Type

from ddl.errors import ConfigError
from ddl.launch.ask.config import PodJob
from ddl.launch.ask.options import FOR_MANIFEST
from ddl.launch.launchers import PodLauncher, k8s

__all__ = ["IN_PODS", "ManifestLauncher", "OwnPodLauncher"]


class ManifestLauncher:
    """It prints what makes Kubernetes start the pods, and starts nothing."""

    name: ClassVar[str] = "k8s"
    takes: ClassVar[Tuple[str, ...]] = (*(names[0] for names, _ in FOR_MANIFEST), "--pods")

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        if given["dashboard"] is not None or given["history"] is not None:
            raise ConfigError(
                "--launcher k8s prints a manifest, and --dashboard and --history are not in it; leave them out"
            )
        _refuse_hosts(cls.name, given)
        if not given["dry_run"]:
            raise ConfigError(
                "--launcher k8s only prints a manifest: add --dry-run, and pass what it prints to kubectl apply -f -"
            )

    @staticmethod
    def pod_job(given: Mapping[str, Any], pods: int) -> Optional[PodJob]:
        return k8s.pod_job(given, pods)


class OwnPodLauncher:
    """This process is in one of the pods, and does that pod's part of the job."""

    name: ClassVar[str] = "pods"
    takes: ClassVar[Tuple[str, ...]] = ("--pods", "--head")

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        _refuse_hosts(cls.name, given)
        if given["dry_run"]:
            raise ConfigError(
                "--dry-run: a pod sees only itself; --launcher k8s --dry-run prints what all pods would run"
            )
        if not given["head"]:
            raise ConfigError("--launcher pods needs --head NAME:PORT, where pod 0 is found; --launcher k8s writes it")

    @staticmethod
    def pod_job(given: Mapping[str, Any], pods: int) -> Optional[PodJob]:
        return None


IN_PODS: Dict[str, Type[PodLauncher]] = {each.name: each for each in (ManifestLauncher, OwnPodLauncher)}


def _refuse_hosts(launcher: str, given: Mapping[str, Any]) -> None:
    if given["hosts"] is not None or given["hostfile"] is not None:
        raise ConfigError(f"--launcher {launcher}: Kubernetes chooses the hosts; say --pods N, not -H or --hostfile")
