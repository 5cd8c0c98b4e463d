"""Whether an elastic job can go on, and for how long it waits. No I/O and no clock; elastic_hosts.py asks.

It gives up when no rank is left that holds the state; when there are fewer ranks than ``--min-np`` and no more can
come, or none have come for ``--elastic-timeout``; or when ``--reset-limit`` is exceeded. The limit counts changes: two
newcomers of a new host that become ranks one after the other are one change, and so is a rank that is lost and then
replaced. The others may form a new generation a moment before the news of which process failed: then it waits for
this news, to name the process.
"""

from __future__ import annotations

import math
from typing import Iterable, List, Mapping, Optional, Sequence

from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.job.elastic_places import SlotHost, SlotProcess
from ddl.text.units import counted

__all__ = ["NEWS_GRACE", "ElasticProspects"]

NEWS_GRACE = 1.0  #: seconds in which one hears how a process has ended that the others go on without


class ElasticProspects:
    """Since when there are too few ranks, and whether they have formed anew too often. ``size`` is -np."""

    def __init__(self, options: ElasticOptions, size: int, now: float) -> None:
        self._options = options
        self._size = size
        self._short_since: Optional[float] = now
        self._limit_passed_at = math.inf

    @property
    def short(self) -> bool:
        """Whether there were too few ranks when ``why_end`` was asked last."""
        return self._short_since is not None

    @property
    def limit_passed(self) -> bool:
        """Whether --reset-limit is exceeded."""
        return self._limit_passed_at < math.inf

    def begin(self) -> None:
        """There are enough slots for the first processes."""
        self._short_since = None

    def count_resets(self, resets: int, now: float) -> None:
        """The ranks have formed anew after so many changes, in all."""
        limit = self._options.reset_limit
        if limit is not None and resets > limit:
            self._limit_passed_at = min(self._limit_passed_at, now)

    def deadlines(self, alive: Iterable[SlotProcess]) -> List[float]:
        """Return when ``why_end`` may have another answer, although nothing has happened."""
        wait = _wait_for_news(alive)
        times = [self._limit_passed_at + wait]
        return times if self._short_since is None else [*times, self._short_since + self._options.timeout + wait]

    def why_end(
        self,
        now: float,
        hosts: Mapping[str, SlotHost],
        alive: Sequence[SlotProcess],
        *,
        begun: bool,
        resets: int,
        room: float,
        owed: int,
        restarts: float,
    ) -> str:
        """Return why the job is to be given up; "": it goes on, or waits.

        ``room``: how many more processes --max-np allows. ``owed``: how many were lost and not replaced. ``restarts``:
        how many may still be started in place of lost ones.
        """
        options = self._options
        if self.limit_passed:
            if now < self._limit_passed_at + _wait_for_news(alive):
                return ""
            changes = counted(resets, "change")
            limit = f"--reset-limit {options.reset_limit}"
            return f"the ranks have formed anew after {changes}, and {limit} allows no more"
        if begun and not any(p.member for p in alive):
            return "no rank is left that holds the state of the training"
        ranks = sum(p.member and not p.leaving and not self._is_failed(hosts[p.host], now) for p in alive)
        if begun and ranks >= options.min_np:
            self._short_since = None
            return ""
        self._short_since = now if self._short_since is None else self._short_since
        if not begun:
            return self._why_not_begun(now, hosts.values())
        few = f"{counted(ranks, 'rank')} left, and --min-np is {options.min_np}"
        reason = _why_hopeless(options, list(hosts.values()), alive, room=room, owed=owed, restarts=restarts)
        if reason:
            return f"{few}; {reason}"
        late = now >= self._short_since + options.timeout + _wait_for_news(alive)
        return f"{few}, since {options.timeout:g} s (--elastic-timeout)" if late else ""

    def too_few_slots(self, hosts: Iterable[SlotHost]) -> str:
        """Return what is told of a job that has not the slots to begin with."""
        return (
            f"waiting for {counted(self._size, 'slot')} to begin; there are only {_slots_of(hosts)}, and the job ends "
            f"after {self._options.timeout:g} s without (--elastic-timeout)"
        )

    def _why_not_begun(self, now: float, hosts: Iterable[SlotHost]) -> str:
        timeout, since = self._options.timeout, self._short_since
        if since is None or now < since + timeout:
            return ""
        return (
            f"the job begins with {counted(self._size, 'rank')}, but within {timeout:g} s (--elastic-timeout) "
            f"there were only {_slots_of(hosts)}; add hosts, or lower -np"
        )

    def _is_failed(self, host: SlotHost, now: float) -> bool:
        """Whether a host is left out. A process that stays there only to hold the state is no rank that counts."""
        return self._options.leave_failed_hosts and host.blocked_until > now


def _slots_of(hosts: Iterable[SlotHost]) -> str:
    present = [host for host in hosts if host.slots]
    named = ", ".join(f"{host.name}:{host.slots}" for host in present)
    return f"{counted(sum(host.slots for host in present), 'slot')} ({named or 'no host'})"


def _wait_for_news(alive: Iterable[SlotProcess]) -> float:
    """Return how long to wait before giving up: longer if it is not heard yet how a process has ended, to name it."""
    return NEWS_GRACE if any(p.left_out for p in alive) else 0.0


def _why_hopeless(
    options: ElasticOptions,
    hosts: Sequence[SlotHost],
    alive: Sequence[SlotProcess],
    *,
    room: float,
    owed: int,
    restarts: float,
) -> str:
    """Return why there cannot be --min-np ranks again, however long one waits; "": they may come.

    The numbers are those of ``why_end``.
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
