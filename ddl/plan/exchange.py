"""Exchange: between hosts, each rank sends each part directly to the rank that adds it up, which sends back the sum.

It moves as many bytes and messages as a ring, but no partial sum crosses the network: only each rank's contribution
does, and then the finished sum. So where messages are rounded (8 bits on the wire), each value is rounded twice, not
once per hop. The cost is a connection to every other host. Inside a host, ranks use shared memory, as in ``multiring``.

A *column* is the ranks with the same index in their hosts. Rank *i* of a host owns slice *i* of the buffer there; its
column cuts that slice into one chunk per host: chunk id = index * hosts + host.

Source: the gather-scatter all-reduce of compressed gradients in QSGD (arXiv 1610.02132) and 1-bit Adam (2102.02888).
"""

from __future__ import annotations

from typing import Dict

from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import Planner, finish, notify, split, wait_for
from ddl.topology import Topology

__all__ = ["PLANNERS"]

_INPUT, _OUTPUT = Buffer.INPUT, Buffer.OUTPUT


def _allreduce(topology: Topology, rank: int, root: int) -> Plan:
    local = topology.local_group(rank)
    peers = tuple(sorted(peer for peer in local if peer != rank))
    # Shared dimensions are the innermost: the ranks of a host are neighbours in the order.
    column = topology.order[local.index(rank) :: len(local)]
    hosts, host = len(column), column.index(rank)
    first = local.index(rank) * hosts
    own, targets = first + host, [(host + distance) % hosts for distance in range(1, hosts)]
    sources = [(host - distance) % hosts for distance in range(1, hosts)]
    steps, source = [], _INPUT
    if peers:
        steps = [notify(1), wait_for(peers, 1)]
        steps.append(Step(Kind.REDUCE_FROM, peers, first, hosts, src=_INPUT, dst=_OUTPUT, final=hosts == 1))
        source = _OUTPUT
    # Each sender begins with a different receiver, so that no receiver has all senders at once.
    steps += [Step(Kind.SEND, (column[other],), first + other, 1, src=source) for other in targets]
    for other in sources:
        last = other == sources[-1]
        steps.append(Step(Kind.RECV_REDUCE, (column[other],), own, 1, src=source, dst=_OUTPUT, final=last))
        source = _OUTPUT
    steps += [Step(Kind.SEND, (column[other],), own, 1, src=_OUTPUT) for other in targets]
    steps += [Step(Kind.RECV, (column[other],), first + other, 1, dst=_OUTPUT) for other in sources]
    if peers:
        steps.append(Step(Kind.COPY_TO, peers, first, hosts, src=_OUTPUT, dst=_OUTPUT))
        steps += [notify(2), wait_for(peers, 2)]
    return finish("exchange", topology.size, split(Collective.ALLREDUCE, rank, root, topology.size), steps)


PLANNERS: Dict[Collective, Planner] = {Collective.ALLREDUCE: _allreduce}
