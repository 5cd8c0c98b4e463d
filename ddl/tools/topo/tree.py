"""What ``ddl topo`` prints: a tree of hosts with ranks, interfaces and GPUs, and the rails that join them."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from ddl.plan.step_text import ranks_text
from ddl.tools.doctor.facts import Facts, HostFacts
from ddl.tools.doctor.gpu_table import gpu_lines
from ddl.tools.doctor.phrases import duration, rate
from ddl.tools.doctor.rails import Rail

__all__ = ["groups_of", "measured", "rail_text", "tree"]


def tree(facts: Facts, rails: Sequence[Rail]) -> List[str]:
    """Return the lines."""
    hosts = "1 host" if len(facts.hosts) == 1 else f"{len(facts.hosts)} hosts"
    lines = [f"{hosts}, {facts.size} ranks"]
    for host in facts.hosts:
        lines += ["", _title(host)]
        inside = _inside(facts, host, rails)
        lines += [f"├─ {line}" for line in inside[:-1]] + [f"└─ {line}" for line in inside[-1:]]
    if rails:
        lines += ["", *(rail_text(rail) for rail in rails)]
    return lines


def _title(host: HostFacts) -> str:
    if host.local is None:
        return host.name
    name = host.name if host.name == host.local.name else f"{host.name} ({host.local.name})"
    shared = f", {host.threads} for a large operation of each rank" if host.threads > 1 else ""
    return f"{name}: {host.local.usable} cores{shared}, DDL {host.local.version}, Python {host.local.python}"


def _inside(facts: Facts, host: HostFacts, rails: Sequence[Rail]) -> List[str]:
    if host.local is None:
        return [f"not there: {host.problem or 'it said nothing'}"]
    lines = []
    for group, shared in groups_of(facts, host):
        ranks = ranks_text(group)
        if facts.groups is None:
            lines.append(f"{ranks}: who shares memory could not be found out")
        else:
            lines.append(f"{ranks} share memory (proved)" if shared else ranks)
    for entry in host.local.interfaces:
        data = ", data" if entry.address == host.local.chosen else ""
        joins = any(rail.members.get(host.number) == entry for rail in rails)
        alone = "" if joins or len(facts.hosts) == 1 else ", joins no other host"
        lines.append(f"{entry.name} {entry.address}/{entry.prefix}, MTU {entry.mtu}{data}{alone}")
    return lines + gpu_lines(host.local.gpus)


def groups_of(facts: Facts, host: HostFacts) -> List[Tuple[Tuple[int, ...], bool]]:
    """Return the host's ranks in groups, and of each whether it proved to share memory."""
    if facts.groups is None:
        return [(host.ranks, False)]
    groups = [tuple(rank for rank in group if rank in host.ranks) for group in facts.groups]
    return [(group, len(group) > 1) for group in groups if group]


def rail_text(rail: Rail) -> str:
    """Return ``rail0 10.77.0.0/24 (data): 21 µs, 9.6 Gb/s``."""
    title = f"{rail.name} {rail.network}".strip() + (" (data)" if rail.used else "")
    return f"{title}: {measured(rail)}"


def measured(rail: Rail) -> str:
    """Return what is typical of a rail, and its slowest link where that differs."""
    if rail.latency is None or rail.bandwidth is None:
        return "nothing passes"
    text = f"{duration(rail.latency)}, {rate(rail.bandwidth)}"
    slowest = rail.bandwidths[0]
    return text + (f", at least {rate(slowest)}" if slowest < 0.8 * rail.bandwidth else "")
