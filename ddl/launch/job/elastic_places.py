"""The hosts and slots of an elastic job, and whether a host is trusted with a new process. No I/O, no clock.

Horovod blacklists a host as soon as a process on it fails, and then ends the other processes there. Users found that
too harsh (its issues #1926, #2813, #3319). So here a failure ends no other process: it only says when the host gets its
next one. With ``--leave-failed-hosts`` the other processes leave, too, after their step, for as long as the host gets
none.

* With ``--blacklist-cooldown-range LO HI``: after a pause that doubles with each failure, from 2 LO, up to HI.
* Else, on a host among several: never, as another host is the better place. The host begins anew only when it leaves
  the list of hosts and comes back (it was repaired, or replaced).
* Else, on the only host: at once. If processes go on failing before they have become ranks, after 1, 2, 4, … seconds.
  With ``--leave-failed-hosts`` the only host is treated like any other: then no host is left.

A host that flaps (leaves the list and comes back, again and again) gets its processes after 0, 1, 2, 4, … seconds.

A host may also be *away*: nothing can be started there until it calls by itself. A lost pod of Kubernetes is away,
because Kubernetes makes a new one. A new pod begins anew, whatever has failed in the old one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Set, Tuple

from ddl.text.units import counted

__all__ = ["SlotHost", "SlotProcess", "take_list"]

_LONGEST_PAUSE = 60.0  # seconds
_MOST_DOUBLINGS = 60


def _pause(times: int) -> float:
    """Return how long to wait after something has happened ``times`` times: 0, 1, 2, 4, … seconds."""
    return 0.0 if times < 2 else min(_LONGEST_PAUSE, 2.0 ** min(times - 2, _MOST_DOUBLINGS))


@dataclass
class SlotProcess:
    """A process that has been ordered, and has not ended."""

    incarnation: int
    host: str
    slot: int
    member: bool  # it is a rank, and so holds the state of the training
    leaving: bool = False
    left_out: bool = False  # the others have formed a generation without it; it is told so by the store
    done_without: bool = False  # and then another one, so that they had gone on
    end_at: float = math.inf  # when to end it, as it was to leave
    asked: bool = False


@dataclass
class SlotHost:
    """A host that was named at some time, with the processes in its slots."""

    name: str
    slots: int  #: by the last list of hosts; 0 if it is not in it
    processes: Dict[int, int] = field(default_factory=dict)  #: incarnations, by slot
    burnt: Set[int] = field(default_factory=set)  #: slots of which the last process failed
    blocked_until: float = 0.0  #: blacklisted; infinity: as long as the host stays in the list
    not_before: float = 0.0  #: too much has happened there lately
    cooldowns: int = 0
    failures: int = 0  #: since a process there has last become a rank
    returns: int = 0
    away: bool = False  #: until it calls

    @property
    def blocked_for_good(self) -> bool:
        return self.blocked_until == math.inf

    @property
    def wakes(self) -> float:
        """When it may get a new process."""
        return math.inf if self.away else max(self.blocked_until, self.not_before)

    def why_leave(self, slot: int, now: float, leave_failed: bool) -> str:
        """Return why the process in ``slot`` must leave; "": it may stay. ``leave_failed``: --leave-failed-hosts."""
        if slot >= self.slots:
            return f"its slot on host {self.name} is gone"
        if self.away:
            return f"host {self.name} is to end"
        if leave_failed and self.blocked_until > now:
            return f"another rank on host {self.name} has failed (--leave-failed-hosts)"
        return ""

    def come_back(self, slots: int, now: float) -> None:
        """It is in the list again: earlier failures there do not count any more, but its flapping does."""
        self.slots = slots
        self.returns += 1
        self.not_before = now + _pause(self.returns)
        self.burnt.clear()
        if self.blocked_for_good:
            self.blocked_until = 0.0

    def call_again(self, now: float) -> None:
        """A new machine has its place: failures of the old one do not count any more, but its flapping does."""
        self.come_back(self.slots, now)
        self.away = False
        self.blocked_until = 0.0
        self.failures = self.cooldowns = 0

    def distrust(self, now: float, cooldown: Optional[Tuple[float, float]], alone: bool, random: float) -> str:
        """A process there has failed. Return what that means for the host, for the user; "": nothing new.

        ``random`` is a number from 0 to 1. A second failure while it is blacklisted has the same cause: it changes
        nothing.
        """
        self.failures += 1
        if self.slots == 0 or self.blocked_until > now:
            return ""
        if cooldown is not None:
            low, high = cooldown
            self.cooldowns += 1
            pause = min(max(low * 2.0 ** min(self.cooldowns, _MOST_DOUBLINGS) + random * low, low), high)
            self.blocked_until = now + pause
            return f"host {self.name} gets no new process for {pause:.1f} s (--blacklist-cooldown-range)"
        if not alone:
            self.blocked_until = math.inf
            return f"host {self.name} gets no new process, as one has failed there"
        self.not_before = now + _pause(self.failures)
        return ""


def take_list(hosts: Dict[str, SlotHost], slots: Mapping[str, int], now: float) -> List[str]:
    """Bring ``hosts`` in line with the hosts of now and their ``slots``. Return what has changed, for the user."""
    changes = []
    for host in list(hosts.values()):
        if host.slots and not slots.get(host.name):
            host.slots = 0
            changes.append(f"host {host.name} has left the list of hosts")
    for name, number in slots.items():
        known = hosts.get(name)
        if known is None:
            hosts[name] = SlotHost(name, number)
            changes.append(f"host {name} is new, with {counted(number, 'slot')}")
        elif known.slots == 0 < number:
            known.come_back(number, now)
            hosts[name] = hosts.pop(name)  # it comes last
            changes.append(f"host {name} is back, with {counted(number, 'slot')}")
        elif known.slots != number:
            changes.append(f"host {name} has {counted(number, 'slot')} now, not {known.slots}")
            known.slots = number
    return changes
