"""The offsets of other hosts' clocks from ddlrun's: CLOCK_MONOTONIC counts from the start of each host.

ddlrun asks a host's agent for its time, again and again. The host has read its clock at some moment between the
question and the answer. So the offset is known up to half the time between these two, and the fastest of several
exchanges is the best one. A host with the same kernel and the same time namespace has the same clock.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional

from ddl import clock
from ddl.machine import boot_id

__all__ = ["ClockOffset", "HostClock", "clock_message", "kernel_clock"]

_FIRST, _EXCHANGES = 64, 16  # of the first round, while ranks start and hosts are busy, and of each later one
_PERIOD = 5.0  # seconds between two rounds
_DRIFT = 20e-6  # seconds a second: quartz clocks that nobody corrects go so much faster or slower
_GIVE_UP = 5.0  # seconds for an answer


def kernel_clock() -> str:
    """Return a name of the clock of this process: who has the same one reads the same time."""
    machine = boot_id()
    try:
        return f"{machine} {os.readlink('/proc/self/ns/time')}" if machine else ""
    except OSError:  # an old kernel, or a strange container: then the offset is measured
        return ""


def clock_message(question: Mapping[str, Any]) -> Dict[str, Any]:
    """Return an agent's answer to the message ``clock``."""
    return {"type": "clock", "number": question["number"], "time": clock.now(), "kernel": kernel_clock()}


@dataclass(frozen=True)
class ClockOffset:
    """A time of that host minus ``offset`` is ddlrun's; both in seconds. ``error``: the most by which that is wrong."""

    offset: float
    error: float
    measured: float  #: when, by ddlrun's clock

    def error_at(self, now: float) -> float:
        """Return how much may be wrong at another time, as clocks drift; seconds."""
        return self.error and self.error + _DRIFT * abs(now - self.measured)


class HostClock:
    """The clock of one host. ``post`` sends a message to its agent. Used by ddlrun's main thread."""

    def __init__(self, post: Callable[[Mapping[str, Any]], None]) -> None:
        self._post = post
        self._number = 0  # of the last question
        self._asked = 0.0
        self._left = 0  # exchanges of this round
        self._best: Optional[ClockOffset] = None  # of this round
        self.offset: Optional[ClockOffset] = None  #: the best that is known; None: the first round is not over yet

    def keep_measured(self, now: float) -> None:
        """Begin a round if it is time for it. Call it now and then."""
        waits = self._left > 0 and now < self._asked + _GIVE_UP
        fresh = self.offset is not None and (self.offset.error == 0.0 or now < self._asked + _PERIOD)
        if not waits and not fresh:
            self._best, self._left = None, _FIRST if self.offset is None else _EXCHANGES
            self._ask()

    def heard(self, message: Mapping[str, Any], received: float) -> bool:
        """Take the answer ``clock``, which came at the time ``received``; return whether ``offset`` is a new one.

        The old one stays while it is better known than what a round between busy hosts has found.
        """
        if message["number"] != self._number or self._left == 0:
            return False  # of a round that was given up
        if message["kernel"] and message["kernel"] == kernel_clock():
            known, self._left = self.offset, 0
            self.offset = ClockOffset(0.0, 0.0, received)
            return known is None or known.offset != 0.0
        error = (received - self._asked) / 2
        if self._best is None or error < self._best.error:
            self._best = ClockOffset(float(message["time"]) - (received + self._asked) / 2, error, received)
        self._left -= 1
        if self._left:
            self._ask()
            return False
        if self.offset is not None and self.offset.error_at(received) < self._best.error:
            return False
        self.offset = self._best
        return True

    def _ask(self) -> None:
        self._number += 1
        self._asked = clock.now()
        self._post({"type": "clock", "number": self._number})
