"""Makes the connections that a group's plans need, in the background.

The caller that submits an operation does not wait for them. The core does, with the operation's deadline: so a rank
that is dead or stopped is named as in any other wait. One short-lived thread per peer makes that peer's connections.
"""

from __future__ import annotations

import errno
import logging
import threading
from typing import Dict, Iterable, List, Set, Tuple

from ddl import _core, clock
from ddl._comm.job import Job
from ddl.bootstrap.peer_handshake import connect_data
from ddl.errors import Error, ResourceError
from ddl.net.auth import AuthError
from ddl.net.encryption import EncryptedSocket
from ddl.net.shortage import shortage

__all__ = ["Connector"]

log = logging.getLogger("ddl")

_ATTEMPT_SECONDS = 5.0  # one attempt: a stopped peer's kernel accepts, but nobody proves
_PAUSE_SECONDS = 0.05
_REFUSED_SECONDS = 0.5  # a rank that refuses connections for so long has left: every rank listened from the start


def _no_answer(error: Exception) -> bool:
    """Whether nothing has come from the host, not even that it refuses."""
    return isinstance(error, OSError) and not isinstance(error, ConnectionError) and not shortage(error)


class Connector:
    """Connects rank ``rank`` of a communicator to others; ``ranks`` are their world ranks. Used by one thread."""

    def __init__(self, job: Job, core: _core.Communicator, number: int, rank: int, ranks: Tuple[int, ...]) -> None:
        self._job = job
        self._core = core
        self._number = number
        self._rank = rank
        self._ranks = ranks
        self.rails = job.rails  #: over which it connects; a later generation of the job may have others
        self._called: Set[Tuple[int, int]] = set()
        self._closed = threading.Event()

    def need(self, peers: Iterable[int], streams: Iterable[int]) -> None:
        """See to it that there are the connections ``streams`` (docs/wire_format.md) to ``peers``. Does not block.

        The rank with the higher number connects; the other's agent accepts. ResourceError if there can be no thread.
        """
        wanted = list(streams)
        for peer in peers:
            missing = [s for s in wanted if (peer, s) not in self._called and not self._core.connected(peer, s)]
            if peer > self._rank or not missing:
                continue
            self._called.update((peer, stream) for stream in missing)
            by_rail: Dict[int, List[int]] = {}
            for stream in missing:
                by_rail.setdefault(self._rail(stream), []).append(stream)
            for rail, streams_there in by_rail.items():
                name = f"ddl-dial-{peer}" + (f"-rail{rail}" if rail else "")
                thread = threading.Thread(target=self._call, args=(peer, rail, streams_there), name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    self._called.difference_update((peer, stream) for stream in missing)
                    who = self._job.rank_label(self._job.number)
                    raise ResourceError(errno.EAGAIN, f"{who} cannot make connections: {shortage(error)}") from error

    def close(self) -> None:
        """Make no more attempts."""
        self._closed.set()

    def _rail(self, stream: int) -> int:
        return stream // _core.STREAMS if len(self.rails) > 1 else 0

    def _call(self, peer: int, rail: int, streams: List[int]) -> None:
        start = clock.now()
        while streams and not self._closed.is_set() and not self._core.failed:
            try:
                self._connect(peer, rail, streams[0])
                streams.pop(0)
                self._core.note_unreachable(peer, False)
            except (OSError, Error) as error:
                agent = self._job.agent
                if agent is None or self._core.failed:  # the job ends meanwhile, or goes on without this group
                    return
                agent.shortage.met(error)
                waited = clock.now() - start
                silent = waited > self._job.apart_after and _no_answer(error)
                # The store asks both ranks whether they hear each other.
                self._core.note_unreachable(peer, silent and not self._has_other_rail(peer, rail, streams[0]))
                if isinstance(error, ConnectionRefusedError) and waited > _REFUSED_SECONDS:
                    # Not a failure in itself: perhaps nothing needs this connection any more. An operation that does
                    # is asked about, and the verdict knows which rank has left.
                    log.info("rank %d: rank %d accepts no connections any more: %s", self._rank, peer, error)
                    return
                if waited > max(self._job.settings.start_timeout, self._job.apart_after + _ATTEMPT_SECONDS):
                    self._give_up(peer, rail, streams[0], error)
                    return
                self._closed.wait(_PAUSE_SECONDS)

    def _connect(self, peer: int, rail: int, number: int) -> None:
        hello = {"communicator": self._number, "rank": self._rank, "stream": number}
        address = self._job.address(self._ranks[peer], rail, self.rails)
        source = self._job.address(self._job.number, rail, self.rails)[0] if len(self.rails) > 1 else ""
        deadline = clock.now() + _ATTEMPT_SECONDS
        secret, settings = self._job.secret, self._job.settings
        with connect_data(
            [address], secret, hello, deadline, settings.congestion, source, encrypt=settings.encrypt
        ) as sock:
            tls = sock.session if isinstance(sock, EncryptedSocket) else None
            self._core.add_connection(peer, number, sock.detach(), tls)

    def _has_other_rail(self, peer: int, rail: int, number: int) -> bool:
        """Whether the stream of connection ``number`` has one on another rail."""
        others = [number % _core.STREAMS + other * _core.STREAMS for other in range(len(self.rails)) if other != rail]
        return any(self._core.connected(peer, other) for other in others)

    def _give_up(self, peer: int, rail: int, number: int, error: Exception) -> None:
        host, port = self._job.address(self._ranks[peer], rail, self.rails)
        lack = shortage(error)
        if lack:
            reason = f"rank {self._job.identity.rank} cannot connect to {host}:{port}: {lack}"
            self._core.fail("CollectiveTimeout", self._rank, reason, True)
            return
        reason = f"cannot connect to {host}:{port}: {error}"
        if not isinstance(error, AuthError) or error.closed:
            reason += "; is a firewall between the hosts, or was the wrong interface chosen (DDL_INTERFACE)?"
        if self._has_other_rail(peer, rail, number):
            log.warning("rank %d: rank %d is reached without rail %s: %s", self._rank, peer, self.rails[rail], reason)
        else:
            self._core.fail("PeerLost", peer, reason, True)
