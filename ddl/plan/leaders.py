"""Leaders: for small buffers on several hosts. The first rank of each host is its leader.

A leader adds up the contributions of its host, which it reads from shared memory. The leaders then exchange the sums by
recursive doubling, and each writes the result to the other ranks of its host. So every host sends and receives
log2(hosts) messages, however many ranks it has, and the other ranks only take part in two meets in shared memory.
"""

from __future__ import annotations

from typing import Dict, List

from ddl.plan.doubling import doubling_steps
from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import Planner, finish, notify, split, wait_for
from ddl.topology import Topology

__all__ = ["PLANNERS"]

_NAME = "leaders"


def _allreduce(topology: Topology, rank: int, root: int) -> Plan:
    host = topology.local_group(rank)
    leader, size = host[0], topology.size
    layout = split(Collective.ALLREDUCE, rank, root, 1)
    if rank != leader:
        return finish(_NAME, size, layout, [notify(1), wait_for((leader,), 2)])
    leaders = topology.order[:: len(host)]
    index = leaders.index(rank)
    peers = tuple(sorted(host[1:]))
    if not peers:
        return finish(_NAME, size, layout, doubling_steps(leaders, index))

    def sum_of_host(target: Buffer) -> List[Step]:
        inside = Step(Kind.REDUCE_FROM, peers, 0, 1, src=Buffer.INPUT, dst=target, final=len(leaders) == 1)
        return [notify(1), wait_for(peers, 1), inside]

    steps = doubling_steps(leaders, index, sum_of_host)
    steps += [Step(Kind.COPY_TO, peers, 0, 1, src=Buffer.OUTPUT, dst=Buffer.OUTPUT), notify(2)]
    return finish(_NAME, size, layout, steps)


PLANNERS: Dict[Collective, Planner] = {Collective.ALLREDUCE: _allreduce}
