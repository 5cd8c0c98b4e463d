"""Tables for tests, of all-reduces."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from ddl.plan.ir import Collective
from ddl.topology import Topology
from ddl.tuning.select import Lines
from ddl.tuning.table import MeasuredSize, Table, TunedCluster

MACHINE: Dict[str, Any] = {
    "mode": "2x2",
    "host": {"ranks": 2, "memory": {"latency_s": 1e-6, "bandwidth_bytes_per_s": 2e10}},
    "network": [{"name": "hosts", "size": 2, "latency_s": 2e-5, "bandwidth_bytes_per_s": 1.25e8, "rails": 1}],
}


def table_of(cluster: TunedCluster, topology: Topology, lines: Lines, measured: Tuple[MeasuredSize, ...] = ()) -> Table:
    return Table(
        lines={Collective.ALLREDUCE: lines},
        cluster=cluster,
        topology=str(topology),
        local_size=topology.local_size,
        date="2026-11-22",
        measured={Collective.ALLREDUCE: measured},
        machine=MACHINE,
    )
