"""Decides which processes an elastic job has: where new ones start, and which leave.

A state machine without I/O and without a clock: ``handle`` takes an event and the time of now and returns orders,
``tick`` returns those that a deadline brings, and ``next_deadline`` says when to call it. elastic_course.py feeds it
from ddlrun's loop; the tests feed it with whole histories.

What it does not decide is who the ranks are: the store forms their generations, and tells by ``RanksFormed``.

* A job begins when there are slots for ``-np`` ranks. It then uses all slots, up to ``--max-np``.
* Hosts are filled in the order in which they were first named. A host that comes back comes last.
* A process that the others have left out of a generation (it was stopped, say) is ended if it does not end by itself.
* A process whose slot is gone is let go: it leaves after its step. If no other rank holds the state of the training,
  it stays until a newcomer has become a rank. What does not leave in time is ended.
* A process that fails is lost; another one is started, as far as there are slots, and ``--max-restarts`` allows it.
  When a host gets another process, and when the others there must leave: elastic_places.py.
* When a rank has ended with status 0 the training is over: nothing is started any more, and newcomers are let go.
* It gives up when elastic_prospects.py says so.
* A host that may return (``ElasticOptions.returning``) and is lost gets no process until it has called again. Then it
  is as good as new. If it would never get a process again, and has none, it is told to end, so that it returns.
* A list without any host, after one with hosts, counts as a failure of the script: the last good list stays.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, Optional, Set

from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.job.elastic_events import (
    DiscoveryFailed,
    ElasticEvent,
    ElasticOrder,
    EndProcess,
    GiveUp,
    HostFailed,
    HostLeaves,
    HostReturned,
    HostsSeen,
    LetGo,
    ProcessEnded,
    RanksFormed,
    RenewHost,
    StartProcess,
    TellUser,
)
from ddl.launch.job.elastic_places import SlotHost, SlotProcess, take_list
from ddl.launch.job.elastic_prospects import ElasticProspects
from ddl.text.units import counted

__all__ = ["FORCE_GRACE", "LEAVE_GRACE", "ElasticHosts"]

LEAVE_GRACE = 60.0  #: seconds that a process has to leave, or --elastic-timeout if that is shorter
FORCE_GRACE = 5.0  #: seconds between asking a process to end and killing it


class ElasticHosts:
    """See the head of this file. ``size`` is -np; ``random`` returns numbers from 0 to 1, for cool-down pauses."""

    def __init__(self, options: ElasticOptions, size: int, random: Callable[[], float], now: float) -> None:
        self._options = options
        self._size = size
        self._random = random
        self._hosts: Dict[str, SlotHost] = {}  # in the order in which they are filled
        self._alive: Dict[int, SlotProcess] = {}
        self._next = 0  # incarnation
        self._orders: List[ElasticOrder] = []
        self._prospects = ElasticProspects(options, size, now)
        self._heard = False  # a list of hosts has come
        self._warned: Set[str] = set()
        self._owed = 0  # processes that were lost and not replaced
        self._kept = -1  # the incarnation that stays without a slot, as it alone holds the state
        self._cause = ""  # the last change
        self._changed = False  # since the last generation
        self._closed = False  # the last order has been given
        self.begun = False
        self.finishing = False  #: the training is over
        self.problem = ""  #: why the job was given up
        self.blamed = -1  #: the process that failed, if that was the last change
        self.resets = 0  #: changes after which the ranks formed anew
        self.lost = 0  #: processes that failed
        self.came = 0  #: processes that were started after the first ones
        self.restarts = 0  #: of these, in place of lost ones
        self.left = 0  #: processes that were let go
        self.failed_at_end = False  #: a rank has failed after another one had ended with status 0

    @property
    def over(self) -> bool:
        """Whether no process is left, and none will come."""
        return not self._alive and (self.finishing or bool(self.problem))

    @property
    def running(self) -> int:
        """How many processes there are that shall stay."""
        return self.running_without(-1)

    def running_without(self, incarnation: int) -> int:
        """How many processes there are that shall stay, apart from this one."""
        return sum(not p.leaving for p in self._alive.values() if p.incarnation != incarnation)

    def is_there(self, incarnation: int) -> bool:
        """Return whether a process has been ordered, and has not ended."""
        return incarnation in self._alive

    def is_leaving(self, incarnation: int) -> bool:
        """Return whether a process was let go and has not ended. If the others have left it out, it was not let go."""
        process = self._alive.get(incarnation)
        return process is not None and process.leaving and not process.left_out

    def is_done_without(self, incarnation: int) -> bool:
        """Return whether the others have left out a process and go on: its end is not why the job fails."""
        process = self._alive.get(incarnation)
        goes_on = not self._prospects.limit_passed and not self._prospects.short
        return process is not None and process.left_out and (process.done_without or goes_on)

    def handle(self, event: ElasticEvent, now: float) -> List[ElasticOrder]:
        """Take note of what has happened; return what is to be done."""
        if isinstance(event, ProcessEnded):
            process = self._alive.get(event.incarnation)
            if process is not None:
                self._end(process, event.well, event.how, now)
        elif isinstance(event, HostFailed):
            self._lose_host(event, now)
        elif self.problem or self.finishing:
            pass  # only processes that end are of interest now
        elif isinstance(event, HostsSeen):
            self._see(event, now)
        elif isinstance(event, DiscoveryFailed):
            self._miss_list(event)
        elif isinstance(event, HostLeaves):
            self._hosts[event.host].away = True
            self._cause, self.blamed = f"host {event.host} is to end: {event.why}", -1
            self._tell(self._cause)
        elif isinstance(event, HostReturned):
            self._take_back(self._hosts[event.host], now)
        else:
            self._form(event, now)
        return self.tick(now)

    def tick(self, now: float) -> List[ElasticOrder]:
        """Return what is to be done now, also because a deadline has passed."""
        if not self.problem:
            self._end_what_does_not_leave(now)
            if not self.finishing:
                self._let_go_of_the_doomed(now)
                self._begin() if not self.begun else self._fill(now)
                self._renew_hosts()
                self._look_for_an_end(now)
        orders, self._orders = ([] if self._closed else self._orders), []
        self._closed = bool(self.problem)
        return orders

    def next_deadline(self) -> Optional[float]:
        """Return when ``tick`` has something to do at the latest; None: only an event brings something to do."""
        if self.problem:
            return None
        times = [p.end_at for p in self._alive.values()]
        if not self.finishing:
            times += self._prospects.deadlines(self._alive.values())
            if self.begun and self._room > 0:
                times += [host.wakes for host in self._hosts.values() if self._startable(host)]
        return min((time for time in times if time < math.inf), default=None)

    # --- what has happened ---

    def _see(self, event: HostsSeen, now: float) -> None:
        if not event.hosts and any(host.slots for host in self._hosts.values()):
            return self._miss_list(DiscoveryFailed("empty", "it named no host at all"))
        self._heard = True
        slots = {host.name: host.slots or 0 for host in event.hosts}
        for change in take_list(self._hosts, slots, now):
            if self.begun:
                self._note(change)

    def _miss_list(self, event: DiscoveryFailed) -> None:
        if not self._heard:
            self._give_up(f"--host-discovery-script: {event.text}; nothing was started")
        elif event.kind not in self._warned:
            self._warned.add(event.kind)
            self._tell(f"warning: --host-discovery-script: {event.text}; the hosts that it named before stay in use")

    def _end(self, process: SlotProcess, well: bool, how: str, now: float) -> None:
        """A process has ended, by itself or because it was let go."""
        host = self._hosts[process.host]
        self._forget(process)
        if process.leaving and (well or not process.left_out):
            self.left += 1
        elif well:
            self._finish(now)
        else:
            self._count_as_lost(process, how)
            self._distrust(host, now)

    def _lose_host(self, event: HostFailed, now: float) -> None:
        host = self._hosts[event.host]
        self._cause = f"host {event.host} was lost: {event.why}"
        for process in [self._alive[incarnation] for incarnation in host.processes.values()]:
            self._forget(process)
            if process.leaving and not process.left_out:
                self.left += 1
            else:  # also if the others went on without it before its host was seen to be lost
                self._count_as_lost(process, self._cause)
        self.blamed = -1
        if host.name in self._options.returning:
            host.away = True
        else:
            self._distrust(host, now)

    def _take_back(self, host: SlotHost, now: float) -> None:
        if host.processes:
            self._lose_host(HostFailed(host.name, "a new one has called in its place"), now)
        host.call_again(now)
        self._tell(f"host {host.name} is back, with {counted(host.slots, 'slot')}")

    def _form(self, event: RanksFormed, now: float) -> None:
        for process in self._alive.values():
            process.done_without = process.left_out
            joined = process.incarnation in event.members
            if joined and not process.member:
                self._hosts[process.host].failures = 0
            elif process.member and not joined and not process.leaving:
                process.left_out = process.leaving = self._changed = True
                process.end_at = now + self._grace
                self._cause = f"the others go on without process {process.incarnation} (host {process.host})"
            process.member = joined
        self.resets += self._changed and event.generation > 0
        self._changed = False
        self._prospects.count_resets(self.resets, now)

    def _finish(self, now: float) -> None:
        self.finishing = not self.problem
        for process in self._alive.values():
            if self.finishing and not process.member:
                self._leave(process, "the training has ended", now)
                process.end_at = now  # it has no step to end

    def _forget(self, process: SlotProcess) -> None:
        del self._alive[process.incarnation]
        del self._hosts[process.host].processes[process.slot]

    def _count_as_lost(self, process: SlotProcess, how: str) -> None:
        self.lost += 1
        self._cause = how
        self.blamed = process.incarnation
        self._changed |= not process.left_out  # else that was counted when it was left out
        self._hosts[process.host].burnt.add(process.slot)
        if self.finishing:
            self.failed_at_end = True
        else:
            self._owed += 1

    def _distrust(self, host: SlotHost, now: float) -> None:
        if not self.finishing:
            alone = sum(other.slots > 0 for other in self._hosts.values()) <= 1 and not self._options.leave_failed_hosts
            text = host.distrust(now, self._options.cooldown_range, alone, self._random())
            if text and self._restarts_left:
                self._tell(text)

    # --- what is to be done ---

    def _let_go_of_the_doomed(self, now: float) -> None:
        """Let go of processes that must leave their slots, but keep one if no other rank holds the state."""
        staying = [p for p in self._alive.values() if not p.leaving]
        doomed = {p.incarnation: self._why_leave(p, now) for p in staying if self._why_leave(p, now)}
        self._kept = -1
        if not any(p.member for p in staying if p.incarnation not in doomed):
            self._kept = next((p.incarnation for p in staying if p.member), -1)
        for incarnation, why in doomed.items():
            if incarnation != self._kept:
                self._leave(self._alive[incarnation], why, now)
        for process in reversed(staying):  # one that was kept has got its slot back, and another was started meanwhile
            if self._room < 0 and not process.leaving:
                self._leave(process, "there are more processes than --max-np", now)

    def _why_leave(self, process: SlotProcess, now: float) -> str:
        return self._hosts[process.host].why_leave(process.slot, now, self._options.leave_failed_hosts)

    def _leave(self, process: SlotProcess, why: str, now: float) -> None:
        if not process.leaving:
            process.leaving = True
            process.end_at = now + self._grace
            self._orders.append(LetGo(process.incarnation, why))

    @property
    def _grace(self) -> float:
        return min(LEAVE_GRACE, self._options.timeout)

    def _end_what_does_not_leave(self, now: float) -> None:
        for process in self._alive.values():
            if process.end_at <= now:
                self._orders.append(EndProcess(process.incarnation, process.asked))
                process.asked = True
                process.end_at = now + FORCE_GRACE

    @property
    def _slots(self) -> int:
        return sum(host.slots for host in self._hosts.values())

    def _begin(self) -> None:
        if self._slots < self._size:
            if self._heard and "short" not in self._warned:
                self._warned.add("short")
                self._tell(self._prospects.too_few_slots(self._hosts.values()))
            return
        self.begun = True
        self._prospects.begin()
        for host in self._hosts.values():
            for slot in range(host.slots):
                if self._room > 0:
                    self._start(host, slot, first=True)

    @property
    def _room(self) -> float:
        """How many more processes --max-np allows. One that only stays until another rank holds the state is extra."""
        most = self._options.max_np
        return math.inf if most is None else most - self.running + (self._kept in self._alive)

    @property
    def _restarts_left(self) -> float:
        most = self._options.max_restarts
        return math.inf if most is None else most - self.restarts

    def _is_restart(self, host: SlotHost, slot: int) -> bool:
        """Whether a process there would replace one that was lost: others are growth."""
        return slot in host.burnt or self._room <= self._owed

    def _startable(self, host: SlotHost) -> List[int]:
        """The free slots of a host in which a process may start as soon as the host is trusted."""
        limit = 0 if self._prospects.limit_passed else host.slots
        free = [slot for slot in range(limit) if slot not in host.processes]
        return [slot for slot in free if self._restarts_left or not self._is_restart(host, slot)]

    def _fill(self, now: float) -> None:
        for host in self._hosts.values():
            while host.wakes <= now and self._room > 0:
                slots = self._startable(host)
                if not slots:
                    break
                self.came += 1
                if self._is_restart(host, slots[0]):
                    self.restarts += 1
                    self._owed = max(0, self._owed - 1)
                self._start(host, slots[0], first=False)

    def _start(self, host: SlotHost, slot: int, *, first: bool) -> None:
        incarnation, self._next = self._next, self._next + 1
        self._alive[incarnation] = SlotProcess(incarnation, host.name, slot, member=first)
        host.processes[slot] = incarnation
        host.burnt.discard(slot)
        self._orders.append(StartProcess(incarnation, host.name, slot, host.slots, first))

    def _renew_hosts(self) -> None:
        for host in self._hosts.values():
            unused = host.slots and host.blocked_for_good and not host.processes and not host.away
            if unused and host.name in self._options.returning and self._restarts_left:
                host.away = True
                self._tell(f"host {host.name} has no rank left, so it ends, and a new one may take its place")
                self._orders.append(RenewHost(host.name))

    # --- the end, and what the user is told ---

    def _look_for_an_end(self, now: float) -> None:
        """Give up if the job cannot go on, or has waited too long."""
        why = self._prospects.why_end(
            now,
            self._hosts,
            list(self._alive.values()),
            begun=self.begun,
            resets=self.resets,
            room=self._room,
            owed=self._owed,
            restarts=self._restarts_left,
        )
        if why:
            change = f"the last change: {self._cause}" if self._cause else "nothing has changed before"
            self._give_up(f"{why}; {change}" if self.begun else why)

    def _give_up(self, why: str) -> None:
        self.problem = why
        self._orders.append(GiveUp(why))

    def _note(self, change: str) -> None:
        self._cause = change
        self._changed = True
        self.blamed = -1
        self._tell(change)

    def _tell(self, text: str) -> None:
        self._orders.append(TellUser(text))
