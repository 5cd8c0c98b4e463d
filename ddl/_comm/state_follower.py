"""How a process that joins gets the state of the members while they go on: see state_source.py.

It receives stripes of a snapshot from several members, each in a thread, and puts them together. Then it repeats each
step that the members have done since, from what they send of that step. It has caught up when nothing is left to do.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

import numpy as np

from ddl import clock
from ddl._comm import object_codec
from ddl._comm.state_stripes import stripe
from ddl.errors import Error, PeerLost, ProtocolError
from ddl.net.auth import read_exactly, recv_frame, send_frame

__all__ = ["StateFollower", "Update"]

log = logging.getLogger("ddl")

#: Takes what describes a state or a change of it, and its bytes (uint8, one axis).
Update = Callable[[Any, np.ndarray], None]

#: The steps that members may do, in each attempt, before they have to be at the step of the snapshot.
_MARGINS = (2, 8, 32, 128)
_CHANGING = 0.25  #: seconds to wait while the ranks are changing


class _Whole:
    """A snapshot, or what a step brings, as its parts come."""

    def __init__(self, total: int, parts: int) -> None:
        self.data = np.empty(total, np.uint8)
        self.about: Any = None
        self.missing: Set[int] = set(range(parts))


class _SnapshotTry:
    """One snapshot and what follows it, from the members at the other ends of ``socks``."""

    def __init__(self, socks: Sequence[socket.socket], margin: int, patience: float) -> None:
        self._socks, self._patience = socks, patience
        self._changed = threading.Condition()
        self._steps: Dict[int, _Whole] = {}  # by number: first the snapshot, then each step
        self._why = ""  # it has failed
        self.next = 0  #: the step that is wanted next
        try:
            self._begin(margin, clock.now() + patience)
        except BaseException:
            self.close()
            raise

    def _begin(self, margin: int, deadline: float) -> None:
        for part, sock in enumerate(self._socks):
            send_frame(sock, {"part": part, "parts": len(self._socks)}, deadline)
        told = [recv_frame(sock, deadline) for sock in self._socks]
        if any(said.get("changing") is True for said in told):
            time.sleep(_CHANGING)
            raise PeerLost("the ranks are changing")
        self.next = max(int(said["finished"]) for said in told) + margin
        for part, sock in enumerate(self._socks):
            send_frame(sock, {"step": self.next}, deadline)
            threading.Thread(target=self._receive, args=(sock, part), name="ddl-follow", daemon=True).start()

    def take(self, seconds: float) -> Optional[_Whole]:
        """Return what is wanted next, once all of it is there; None if it is late. Raises ``PeerLost``."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_whole() or self._why, seconds)
            if not self._is_whole():
                if self._why:
                    raise PeerLost(self._why)
                return None
            self.next += 1
            return self._steps.pop(self.next - 1)

    def _is_whole(self) -> bool:
        return self.next in self._steps and not self._steps[self.next].missing

    @property
    def nothing_waits(self) -> bool:
        """Whether all that has begun to come is taken."""
        with self._changed:
            return not self._steps and not self._why

    def close(self) -> None:
        """Hang up."""
        for sock in self._socks:
            try:
                sock.shutdown(socket.SHUT_RDWR)  # its thread may be receiving
            except OSError:
                log.debug("a member has hung up already")
            sock.close()

    # --- the threads ---

    def _receive(self, sock: socket.socket, part: int) -> None:
        try:
            sock.settimeout(self._patience)
            while True:
                self._receive_part(sock, part)
        except (OSError, Error, EOFError, KeyError, TypeError, ValueError) as error:
            with self._changed:
                self._why = self._why or f"a member that sent its state: {error}"
                self._changed.notify_all()

    def _receive_part(self, sock: socket.socket, part: int) -> None:
        header = recv_frame(sock, clock.now() + self._patience)
        if header.get("type") not in ("snapshot", "step"):
            raise PeerLost(str(header.get("why")))
        step, total = int(header["step"]), int(header["total"])
        start, stop = stripe(total, part, len(self._socks))
        if (header["start"], header["stop"]) != (start, stop):
            raise ProtocolError(f"part {part} is to go from byte {start} to {stop}, and not as in {header}")
        with self._changed:
            whole = self._steps.setdefault(step, _Whole(total, len(self._socks)))
        if len(whole.data) != total:
            raise ProtocolError(f"step {step} has {len(whole.data)} bytes for one member and {total} for another")
        described = read_exactly(sock, int(header["about"]), clock.now() + self._patience)
        rest = whole.data.data[start:stop]
        while rest:
            count = sock.recv_into(rest)
            if not count:
                raise EOFError("the connection was closed")
            rest = rest[count:]
        with self._changed:
            if described:
                whole.about = object_codec.decode(np.frombuffer(described, np.uint8), allow_pickle=False)
            whole.missing.discard(part)
            self._changed.notify_all()


class StateFollower:
    """Gets a state. Used by the script's thread; ``close`` at the end.

    connect: returns connections to members, in a fixed order; raises ``Error`` or ``OSError``.
    load, update: are called with what describes a snapshot, or a step, and with its bytes (uint8).
    """

    def __init__(
        self,
        connect: Callable[[], List[socket.socket]],
        load: Update,
        update: Update,
        patience: float,
    ) -> None:
        self._connect, self._load, self._update = connect, load, update
        self._patience = patience
        self._try: Optional[_SnapshotTry] = None
        self.bytes = 0  #: that have been used

    @property
    def follows(self) -> bool:
        """Whether it has caught up, as far as is known."""
        return self._try is not None

    def catch_up(self) -> bool:
        """Do all that the members have done; return whether it worked. Blocking."""
        for margin in _MARGINS:
            try:
                self._try = _SnapshotTry(self._connect(), margin, self._patience)
                self._follow(self._try)
                return True
            except (OSError, Error) as error:
                log.info("the state of the job could not be followed: %s", error)
                self.close()
        return False

    def _follow(self, attempt: _SnapshotTry) -> None:
        use = self._load
        while use is self._load or not attempt.nothing_waits:
            whole = attempt.take(self._patience)
            if whole is None:
                raise PeerLost(f"a part of step {attempt.next} has not come for {self._patience:g} s")
            use(whole.about, whole.data)
            self.bytes += len(whole.data)
            use = self._update

    def complete(self, finished: int, seconds: float) -> bool:
        """Do what is left of the members' ``finished`` steps, after ``catch_up``; return whether that was all."""
        deadline = clock.now() + seconds
        attempt = self._try
        if attempt is None:
            return False
        try:
            while attempt.next <= finished:
                whole = attempt.take(max(0.0, deadline - clock.now()))
                if whole is None:
                    return False
                self._update(whole.about, whole.data)
                self.bytes += len(whole.data)
        except (OSError, Error) as error:
            log.info("the state of the job could not be followed to its end: %s", error)
            return False
        return attempt.next == finished + 1

    def close(self) -> None:
        """Hang up. Idempotent."""
        attempt, self._try = self._try, None
        if attempt is not None:
            attempt.close()
