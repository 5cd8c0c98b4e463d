"""Measures the links of a job: the figures of a machine as ``ddl simulate`` reads them (docs/simulate.md).

Messages take the same path as data, over all rails. For each dimension, only two neighbours exchange messages; all
other ranks are silent.
"""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, Tuple

import numpy as np

from ddl import clock
from ddl.communicator import Communicator
from ddl.memory import empty
from ddl.reduce_op import Max
from ddl.topology import Topology

__all__ = ["machine_of"]

_LARGE = 4 << 20  #: bytes of a message that shows a link's bandwidth
_COPIED = 16 << 20  #: bytes of an array that shows the memory's
_TRIPS, _FLOODS, _COPIES = 50, 3, 3


def machine_of(world: Communicator) -> Dict[str, Any]:
    """Measure every dimension's link and the hosts' memory. Collective, blocking; all ranks return the same."""
    topology = world.topology
    machine: Dict[str, Any] = {"mode": str(topology), "host": {"ranks": topology.local_size}}
    rails = len(world.job.rails)
    networks: List[Dict[str, Any]] = []
    for number, dimension in enumerate(topology.dimensions):
        if dimension.size == 1:
            continue
        latency, bandwidth = _link(world, *_neighbours(topology, number))
        if dimension.shared:
            memory = {"latency_s": latency, "bandwidth_bytes_per_s": _memory_bandwidth(world)}
            machine["host"].setdefault("memory", memory)
        else:
            link = {"latency_s": latency, "bandwidth_bytes_per_s": bandwidth / rails, "rails": rails}
            networks.append({"name": dimension.name, "size": dimension.size, **link})
    if networks:
        machine["network"] = networks
    return machine


def _neighbours(topology: Topology, dimension: int) -> Tuple[int, int]:
    there = [int(number == dimension) for number in range(len(topology.dimensions))]
    return topology.rank_at([0] * len(there)), topology.rank_at(there)


def _link(world: Communicator, a: int, b: int) -> Tuple[float, float]:
    """Return seconds and bytes per second from rank ``a`` to ``b``."""
    tiny, large = np.zeros(1, np.float32), empty(_LARGE // 4, np.float32)
    trips: List[float] = []
    floods: List[float] = []
    for array, count, seconds in ((tiny, _TRIPS, trips), (large, _FLOODS, floods)):
        for _ in range(count):
            begin = clock.now()
            if world.rank == a:
                world.send(array, b)
                world.recv(tiny, b)
            elif world.rank == b:
                world.recv(array, a)
                world.send(tiny, a)
            seconds.append(clock.now() - begin)
    latency = statistics.median(trips) / 2
    sending = max(statistics.median(floods) - 2 * latency, 1e-9)  # seconds
    figures: Tuple[float, float] = world.broadcast_object((latency, _LARGE / sending), root=a)
    return figures


def _memory_bandwidth(world: Communicator) -> float:
    """Return the bytes per second that all ranks of a host together read and write at the same time."""
    source, target = np.ones(_COPIED, np.uint8), np.zeros(_COPIED, np.uint8)
    seconds = np.zeros(_COPIES)
    for number in range(_COPIES):
        world.barrier()
        begin = clock.now()
        np.copyto(target, source)
        seconds[number] = clock.now() - begin
    world.allreduce_(seconds, op=Max)
    return 2 * _COPIED * world.topology.local_size / float(np.median(seconds))
