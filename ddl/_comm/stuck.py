"""Ends what could still change this process's memory: a rank that was stopped amid its own stores, and given up.

A rank writes to arrays that lie in the shared memory of its host's ranks itself. Before, it looks whether their owner
has taken them back after a failure (csrc/engine/neighbourhood.h), and the owner waits for what is under way. But it
waits for no rank that is stopped (SIGSTOP, a debugger). When the others go on without that rank, they use the arrays
again, and it would end its copy of up to some MiB there if it was ever continued. Nothing but its end prevents that.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any

from ddl import clock

__all__ = ["end_stuck"]

_log = logging.getLogger("ddl")
_SECONDS = 5.0  # that the kernel has to end a process


def end_stuck(who: str, core: Any) -> None:
    """Kill the neighbours of ``core``, a group's that was left, that are amid stores; wait for their ends. Blocking.

    None where no operation of the group has failed here, and none that goes on. ``who``: how messages begin. Where a
    process cannot be killed, a warning says what that may do.
    """
    for rank, pid in core.stuck():
        what = f"{who} rank {rank} (pid {pid}) was given up while it wrote to memory of this host's ranks"
        try:
            if not pid:  # 0 would be all processes of this one's group
                raise PermissionError("its process cannot be seen from this container")
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        except PermissionError as error:
            _log.warning("%s, and cannot be ended (%s): if it goes on, it may change their arrays", what, error)
            continue
        deadline = clock.now() + _SECONDS
        while (rank, pid) in core.stuck() and clock.now() < deadline:
            time.sleep(0.005)
        ended = (rank, pid) not in core.stuck()
        _log.warning("%s; it was killed%s", what, "" if ended else f", but has not ended within {_SECONDS:g} s")
