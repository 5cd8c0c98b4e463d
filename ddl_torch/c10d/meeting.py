"""How the ranks of a process group meet for a job of just them, beside the job of the process if it has one.

Whoever wants a group of other ranks makes a new job of them, while the old one still stands; nothing of the old one is
needed, and a failed attempt leaves it as it was. The ranks meet in torch's store: the new rank 0 claims the attempt,
serves the new job's store in its own process, and says where. From then on they find one another as ranks of any job.

Every wait has an end, and whoever gives up first says so to all that come later. So an attempt ends alike on all ranks,
and its number or prefix cannot be used again on any of them.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import secrets
import socket
from dataclasses import dataclass
from typing import Any, List, NoReturn, Optional, Sequence

from torch._C._distributed_c10d import Store

from ddl import CommunicatorError, InvalidArgument, InvalidState, Rendezvous, RendezvousError, clock
from ddl.adapter.joining import JobBeside

__all__ = ["MeetingAttempt", "MeetingFailed", "RankHandle"]

_KIND = "ddl"
_CLAIMED, _TOLD = "claimed", "told"  # keys of an attempt


class MeetingFailed(RendezvousError, RuntimeError):
    """The ranks of a new group did not come together. Code for torch's own backends expects a ``RuntimeError``."""


@dataclass(frozen=True)
class RankHandle:
    """What the ranks of an attempt know of one another beforehand. ``number`` orders those that are given as a set."""

    number: int
    token: str  # nobody else has it, not even a process that was started in place of this one
    host: str

    @staticmethod
    def new(number: int) -> RankHandle:
        return RankHandle(number, secrets.token_hex(8), socket.gethostname())

    def text(self) -> str:
        return f"{_KIND}:{self.number}:{self.token}:{self.host}"

    @staticmethod
    def parse(text: str) -> RankHandle:
        """Undo ``text``. ``InvalidArgument`` if it is no handle of this backend."""
        kind, *parts = text.split(":", 3) if isinstance(text, str) else [""]
        if kind != _KIND or len(parts) != 3 or not parts[0].isdigit():
            raise InvalidArgument(
                f"{text!r:.100} is no handle of the backend {_KIND}; pass what get_reconfigure_handle() returns there"
            )
        return RankHandle(int(parts[0]), *parts[1:])


class MeetingAttempt:
    """One attempt of the ranks ``handles`` to make a job of themselves; ``own`` is this process's.

    ``store``: torch's, under a prefix that no other attempt has, called ``name`` in errors; ``seconds``: how long it
    may take. Used once.
    """

    def __init__(self, store: Store, name: str, own: RankHandle, handles: Sequence[RankHandle], seconds: float) -> None:
        self._store, self._name, self._own, self._handles = store, name, own, list(handles)
        self._seconds = seconds
        self._deadline = clock.now() + seconds
        if len({handle.token for handle in handles}) < len(handles) or own not in handles:
            texts = ", ".join(handle.text() for handle in handles)
            raise InvalidArgument(
                f"{name}: each rank has one handle, and that of this process, {own.text()}, is one of them; not {texts}"
            )
        self._rank = self._handles.index(own)
        self._who = f"[rank {self._rank}/{len(handles)} host {own.host}] {name}"
        self._claimed = False

    def run(self, timeout: Optional[float]) -> JobBeside:
        """Meet the others, and return the job. Collective, blocking.

        ``timeout``: seconds of one of its operations (None: DDL_TIMEOUT). Raises ``InvalidState`` if the attempt's
        number was used before, ``RendezvousError`` naming the ranks that do not come in time.
        """
        try:
            return self._run(timeout)
        except (RendezvousError, CommunicatorError) as error:
            raise MeetingFailed(f"{self._who} failed: {error}; the next attempt needs a fresh number") from error

    def _run(self, timeout: Optional[float]) -> JobBeside:
        if self._ask(lambda: self._store.add(f"came/{self._own.token}", 1)) > 1:
            self._refuse_reuse()
        if self._rank == 0:
            self._claim()
        hosts = [handle.host for handle in self._handles]
        rendezvous = Rendezvous(self._rank, len(hosts), self._share, hosts, "torch.distributed")
        try:
            job = JobBeside(rendezvous, self._left(), timeout)
        except BaseException as error:
            if self._claimed:
                self._tell_failure(f"{error}")
            raise
        job.wait_at_most(self._left())
        return job

    # --- in torch's store ---

    def _claim(self) -> None:
        if self._ask(lambda: self._store.add(_CLAIMED, 1)) > 1:
            if self._ask(lambda: self._store.check([_TOLD])):
                self._read()  # raises it if the others have given up
            self._refuse_reuse()
        self._claimed = True

    def _share(self, text: Optional[str]) -> str:
        """Tell the others ``text``, or learn what rank 0 tells."""
        if text is not None:
            self._tell({"text": text})
            return text
        try:
            self._store.wait([_TOLD], datetime.timedelta(seconds=self._left()))
        except RuntimeError as error:
            if clock.now() < self._deadline:
                self._lost_store(error)
            self._claimed = self._ask(lambda: self._store.add(_CLAIMED, 1)) == 1  # then nobody can claim it any more
            raise RendezvousError(
                f"rank 0 ({self._handles[0].text()}) did not come within {self._seconds:g} s; is its process alive?"
            ) from None
        return self._read()

    def _read(self) -> str:
        told = json.loads(self._ask(lambda: self._store.get(_TOLD)))
        if told["handles"] != self._texts():
            self._refuse_reuse()
        if "failed" in told:
            raise RendezvousError(f"it has failed already: {told['failed']}")
        return str(told["text"])

    def _tell(self, what: Any) -> None:
        self._ask(lambda: self._store.set(_TOLD, json.dumps({"handles": self._texts(), **what})))

    def _tell_failure(self, text: str) -> None:
        """Let ranks that come later know at once; if the store is gone, they cannot come."""
        with contextlib.suppress(RendezvousError):
            self._tell({"failed": text})

    def _ask(self, question: Any) -> Any:
        try:
            return question()
        except RuntimeError as error:
            self._lost_store(error)

    # --- what can go wrong ---

    def _refuse_reuse(self) -> NoReturn:
        raise InvalidState(
            f"{self._who} was refused: it was already used, by these ranks or with other handles; each attempt needs a "
            "fresh one, and the same handles on all its ranks"
        )

    def _lost_store(self, error: RuntimeError) -> NoReturn:
        raise RendezvousError(
            f"torch's store, in which the ranks meet, has ended ({error}); give torch a store that outlives its ranks, "
            "as torchrun's does"
        ) from error

    def _left(self) -> float:
        return max(0.01, self._deadline - clock.now())

    def _texts(self) -> List[str]:
        return [handle.text() for handle in self._handles]
