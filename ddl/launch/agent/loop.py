"""The parts of the loops of ddlrun (cluster_job.py) and of its agents (host_ranks.py): one wait for all events."""

from __future__ import annotations

import math
import select
import signal
import socket
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from ddl import clock
from ddl.launch.agent.grace import FORWARDED

__all__ = ["Handlers", "catch_signals", "drain", "wait_once"]

#: By descriptor: the events of poll(2) to wait for, and what to do then.
Handlers = Mapping[int, Tuple[int, Callable[[], None]]]


def wait_once(handlers: Handlers, until: Optional[float]) -> None:
    """Wait for the first event, at most until ``until`` (clock.now), and handle what there is.

    No handler may read or close what another one waits for: its event may be the next.
    """
    poller = select.poll()
    for fd, (events, _) in handlers.items():
        poller.register(fd, events)
    wait = None if until is None else max(0, math.ceil((until - clock.now()) * 1000))
    for fd, _ in poller.poll(wait):
        handlers[fd][1]()


def drain(sock: socket.socket) -> bytes:
    """Return what has come, if anything."""
    try:
        return sock.recv(4096)
    except BlockingIOError:
        return b""


def catch_signals() -> Tuple[socket.socket, Callable[[], None]]:
    """Let signals wake the loop: return a socket that receives their numbers, and what undoes it."""
    woken, waker = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    old_fd = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    old: Dict[int, Any] = {}
    stopping = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    for number in (signal.SIGCHLD, *stopping, *FORWARDED):
        # Who started us with a signal ignored (nohup) wants us to survive it.
        if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
            old[number] = signal.signal(number, lambda *_: None)

    def restore() -> None:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_fd)
        woken.close()
        waker.close()

    return woken, restore
