"""Whether an elastic job that has too few ranks can have enough again. Functions without I/O, for elastic_hosts.py."""

from __future__ import annotations

from typing import Sequence

from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.job.elastic_places import SlotHost, SlotProcess

__all__ = ["why_hopeless"]


def why_hopeless(
    options: ElasticOptions,
    hosts: Sequence[SlotHost],
    alive: Sequence[SlotProcess],
    *,
    room: float,
    owed: int,
    restarts: float,
) -> str:
    """Return why there cannot be --min-np ranks again, however long one waits; "": they may come.

    ``room``: how many more processes --max-np allows. ``owed``: how many were lost and not replaced. ``restarts``: how
    many may still be started in place of lost ones.
    """
    present = [host for host in hosts if host.slots]
    trusted = [host for host in present if not host.blocked_for_good or _will_be_new(host, options)]
    slots = [(host, slot) for host in trusted for slot in range(host.slots)]
    taken = {(p.host, p.slot) for p in alive if not p.leaving}  # others' slots will be free
    free = [(host, slot) for host, slot in slots if (host.name, slot) not in taken]
    fresh = sum(slot not in host.burnt or _will_be_new(host, options) for host, slot in free)
    growth = min(fresh, max(0, room - owed))
    possible = growth + min(len(free) - growth, restarts)
    gone = {host.name for host in present if host.blocked_for_good and options.leave_failed_hosts}
    staying = sum(not p.leaving and p.host not in gone for p in alive)
    if staying + possible >= options.min_np:
        return ""
    names = ", ".join(host.name for host in present)
    if present and not trusted:
        return f"on every host a process has failed, so none gets a new one: {names}"
    if owed and not restarts:
        return f"--max-restarts {options.max_restarts} allows no other process in place of a lost one"
    return "" if options.discovery_script else f"there is no free slot: {names}"


def _will_be_new(host: SlotHost, options: ElasticOptions) -> bool:
    """Return whether a host that gets no process now may return, and then get some."""
    emptied = host.blocked_for_good and options.leave_failed_hosts and host.name in options.returning
    return host.away or emptied
