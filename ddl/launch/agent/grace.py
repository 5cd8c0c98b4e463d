"""How long ranks have to end by themselves, to save a checkpoint, say, before ddlrun or an agent ends them by force.

When told to stop they have ``TOLD`` seconds, as under torchrun, Slurm and Kubernetes. When another rank has failed they
have ``FAILED`` seconds to notice it and to save what they have; then they are asked by SIGTERM, and have as long again.
``--grace`` says both. Agents keep to the same times, and hear of ddlrun's own earlier.
"""

from __future__ import annotations

import signal
from typing import List, Optional, Tuple

__all__ = ["FAILED", "FORWARDED", "KILL_GRACE", "TOLD", "Due", "when_failed", "when_given_up", "when_told"]

TOLD = 30.0  #: seconds
FAILED = 10.0  #: seconds
KILL_GRACE = 0.5  #: seconds between asking a process to end and killing it, at least
#: Signals that mean something to a program alone: Slurm's warning of preemption, as ``--signal=USR1@60`` asks for.
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)

#: When a signal is to be sent to all ranks, by ``clock.now``, and which.
Due = List[Tuple[float, int]]


def when_told(number: int, now: float, grace: Optional[float]) -> Due:
    """Return what follows when somebody has sent signal ``number`` (SIGPIPE: nobody reads the output any more).

    ``grace``: seconds, None: ``TOLD``. A second SIGTERM would mean to a program that it is to hurry.
    """
    first = signal.SIGTERM if number == signal.SIGPIPE else number
    end = now + (TOLD if grace is None else grace)
    if first == signal.SIGTERM:
        return [(now, first), (end, signal.SIGKILL)]
    return [(now, first), (end, signal.SIGTERM), (end + KILL_GRACE, signal.SIGKILL)]


def when_failed(now: float, grace: Optional[float]) -> Due:
    """Return what follows when a rank has failed. ``grace``: seconds, None: ``FAILED``."""
    seconds = FAILED if grace is None else grace
    return [(now + seconds, signal.SIGTERM), (now + seconds + max(seconds, KILL_GRACE), signal.SIGKILL)]


def when_given_up(now: float, grace: Optional[float]) -> Due:
    """Return what follows when the job cannot go on at all. ``grace``: seconds, None: ``FAILED``."""
    return [(now, signal.SIGTERM), (now + (FAILED if grace is None else grace), signal.SIGKILL)]
