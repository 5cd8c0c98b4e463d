"""Where the actors of a ``RayExecutor`` run: resources are reserved for all together, before the first one starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ddl.errors import InvalidArgument, RendezvousError

__all__ = ["RaySettings", "Workers", "node_first", "reserve"]


@dataclass(frozen=True)
class RaySettings:
    """How long a ``RayExecutor`` waits: ``RayExecutor.create_settings`` makes it.

    ``timeout_s``: seconds in which started actors have to join (DDL_START_TIMEOUT). ``placement_group_timeout_s``:
    seconds in which the cluster has to have the resources, and then as many in which the actors have to start.
    """

    timeout_s: float = 30
    placement_group_timeout_s: float = 100


@dataclass(frozen=True)
class Workers:
    """How many actors there are, on how many hosts (0: wherever there is room), and what each one needs."""

    count: int
    hosts: int
    cpus: float
    gpus: float

    @classmethod
    def asked(
        cls, num_workers: Optional[int], num_hosts: Optional[int], per_host: int, cpus: float, gpus: float
    ) -> Workers:
        """Check what a user has asked for. ``InvalidArgument`` if it makes no sense."""
        if (num_workers is None) == (num_hosts is None):
            raise InvalidArgument("RayExecutor: give num_workers, or num_hosts and num_workers_per_host")
        hosts, count = num_hosts or 0, num_workers if num_hosts is None else num_hosts * per_host
        if count is None or count < 1:
            raise InvalidArgument(f"RayExecutor: {num_workers=}, {num_hosts=}, {per_host=}; there is at least one")
        return cls(count, hosts, cpus, gpus)

    @property
    def resources(self) -> Dict[str, float]:
        """What one actor needs."""
        return {"CPU": self.cpus, "GPU": self.gpus} if self.gpus else {"CPU": self.cpus}


def reserve(
    workers: Workers, use_current: bool, patience: float
) -> Tuple[List[PlacementGroupSchedulingStrategy], Optional[PlacementGroup]]:
    """Return where each actor is to start, and the placement group to remove at the end, if one was made for them.

    ``use_current``: take the placement group that this process is in (a trial of Tune has one), if it is in one.
    Raises ``RendezvousError`` if the cluster has not what they need.
    """
    current = get_current_placement_group() if use_current else None
    if current is not None:
        return [PlacementGroupSchedulingStrategy(current)] * workers.count, None
    if workers.hosts:
        per_host = workers.count // workers.hosts
        bundle = {name: amount * per_host for name, amount in workers.resources.items()}
        group = placement_group([bundle] * workers.hosts, strategy="STRICT_SPREAD")
        bundles = [host for host in range(workers.hosts) for _ in range(per_host)]
    else:
        group = placement_group([workers.resources] * workers.count, strategy="PACK")
        bundles = list(range(workers.count))
    if not group.wait(patience):
        remove_placement_group(group)
        places = f"on each of {workers.hosts} nodes" if workers.hosts else "on any nodes"
        raise RendezvousError(
            f"RayExecutor: {workers.count} workers, each with {workers.resources}, {places}, did not get their "
            f"resources within {patience:g} s (placement_group_timeout_s); the cluster has "
            f"{_total()}, of which other jobs may use some; ask for less, or add nodes"
        )
    return [PlacementGroupSchedulingStrategy(group, bundle) for bundle in bundles], group


def _total() -> str:
    have = ray.cluster_resources()
    return ", ".join(f"{name} {have[name]:g}" for name in ("CPU", "GPU") if name in have) or "no CPUs"


def node_first(nodes: List[str], own: str) -> List[int]:
    """Return the order of actors in which those of a node follow one another, and those of node ``own`` come first."""
    return sorted(range(len(nodes)), key=lambda index: (nodes[index] != own, nodes[index], index))
