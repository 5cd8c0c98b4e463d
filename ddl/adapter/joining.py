"""Joining a job that a framework's own launcher, or another program than ``ddlrun``, has started."""

from __future__ import annotations

import dataclasses
import os
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from ddl import api, at_exit
from ddl.bootstrap import launched
from ddl.bootstrap.environ import Identity, Settings
from ddl.bootstrap.launched import Launched, Share
from ddl.communicator import Communicator
from ddl.launch.ask.layout import arrange
from ddl.net.address import parse_address
from ddl.store.server import StoreServer
from ddl.store.store import StoreClient

__all__ = ["JobBeside", "LaunchedJob", "Rendezvous", "Settings", "join", "layout_variables", "started_ranks"]


@dataclass(frozen=True)
class Rendezvous:
    """How ranks find one another that ``launcher`` (a name, for messages) has started.

    ``rank``: of this process. ``hosts[r]``: the name of the host on which rank r runs. ``share``: returns, on all
    ranks, the text that rank 0 passes; the others pass None. It may block, and may be called once only.
    """

    launcher: str
    rank: int
    hosts: Sequence[str]
    share: Share

    @property
    def launched(self) -> Launched:
        """What DDL asks of a launcher."""
        own, size = self.hosts[self.rank], len(self.hosts)
        here = [rank for rank, host in enumerate(self.hosts) if host == own]
        distinct = list(dict.fromkeys(self.hosts))
        numbers = here.index(self.rank), len(here), distinct.index(own), len(distinct)
        return Launched(self.launcher, self.rank, size, *numbers, "")


def join(rendezvous: Callable[[], Optional[Rendezvous]]) -> None:
    """Do what ``ddl.init`` does, in a process whose framework knows the other ranks.

    Collective, blocking. ``rendezvous`` is called where ``ddlrun`` has not said who this process is; it returns None
    for a job of one rank. Raises what ``ddl.init`` raises.
    """

    def who() -> Tuple[Identity, Settings]:
        settings, identity = Settings.from_environ(os.environ), Identity.from_environ(os.environ)
        meeting = None if identity.store else rendezvous()
        if meeting is not None:
            identity = launched.join(meeting.launched, meeting.share, settings)
        return identity, settings

    api.join(who)


class JobBeside:
    """A job of just the ranks of ``rendezvous``, beside the one that this process is in, if it is in one.

    Made collectively by its ranks. ``patience``: seconds in which they have to come. ``timeout``: seconds of one of its
    operations (None: DDL_TIMEOUT). Raises what ``ddl.init`` raises; nothing is left of it then.
    """

    def __init__(self, rendezvous: Rendezvous, patience: float, timeout: Optional[float]) -> None:
        usual = Settings.from_environ(os.environ)
        settings = dataclasses.replace(usual, elastic=False, incarnation=-1, start_timeout=patience)
        settings = dataclasses.replace(settings, timeout=timeout or usual.timeout)
        identity, server = Identity(), None
        if len(rendezvous.hosts) > 1:
            identity, server = launched.meet(rendezvous.launched, rendezvous.share, settings)
        try:
            self.world: Communicator = api.begin_job(identity, settings)
        except BaseException:
            if server is not None:
                server.close()
            raise
        self._usual = usual.start_timeout
        self._server: Optional[StoreServer] = server  # of the job's store, on its rank 0
        self._retired: Any = None
        if server is not None:
            at_exit.register(self._close_at_exit)

    def wait_at_most(self, seconds: Optional[float]) -> None:
        """Let its ranks wait so long for one another from now on; None: as long as in any job (DDL_START_TIMEOUT)."""
        self.world.job.wait_at_most(self._usual if seconds is None else seconds)

    def lead(self) -> None:
        """Let ``ddl.world()`` be this job's communicator."""
        api.use_job(self.world)

    def leave(self, patience: Optional[float] = None) -> None:
        """Leave it. Not collective, idempotent.

        Its store goes when all have left, or after ``patience`` seconds (None: those of an operation). Keep this object
        until the ranks have met again: a slower rank may still look at this one's memory.
        """
        self._retired = api.end_job(self.world)
        server, self._server = self._server, None
        if server is not None:
            at_exit.unregister(self._close_at_exit)
            limit = self.world.timeout if patience is None else patience
            at_exit.register(server.close_when_alone, limit)  # where this process ends before the thread
            threading.Thread(target=_end, args=(server, limit), name="ddl-job", daemon=True).start()

    def _close_at_exit(self) -> None:
        api.leave_all()  # all jobs: two processes may have the stores of two jobs, and must not wait for one another
        if self._server is not None:
            self._server.close_when_alone(self.world.timeout)


def _end(server: StoreServer, patience: float) -> None:
    server.close_when_alone(patience)
    at_exit.unregister(server.close_when_alone)


class LaunchedJob:
    """The job that srun, mpiexec or torchrun has started. ``host``: the address of rank 0's host. See ``find``."""

    def __init__(self, identity: Identity, patience: float) -> None:
        self._identity, self._patience = identity, patience
        self.rank, self.size = identity.rank, identity.size
        self.host = parse_address(identity.store)[0]

    @classmethod
    def find(cls) -> Optional[LaunchedJob]:
        """Return it; None if no launcher has started this process. Collective, the first time.

        Raises ``ConfigError`` and ``RendezvousError``.
        """
        settings = Settings.from_environ(os.environ)
        identity = launched.identity(os.environ, settings)
        return None if identity is None else cls(identity, settings.start_timeout)

    def share(self, key: str, text: Optional[str]) -> str:
        """Give all ranks the text that rank 0 passes under a new key; the others pass None, and wait for it."""
        job = self._identity
        client = StoreClient(job.store, job.secret, job.rank, self._patience)
        try:
            if text is not None:
                client.set(key, text)
                return text
            return str(client.get(key, self._patience))
        finally:
            client.close()


def started_ranks() -> int:
    """Return how many ranks whoever has started this process says that there are; 1: nobody has. Not collective."""
    return (launched.detect(os.environ) or Identity.from_environ(os.environ)).size


def layout_variables(ranks: int, mode: str) -> Dict[str, str]:
    """Return the variables by which ``ddlrun --mode`` lays out so many ranks. Raises ``ConfigError``."""
    return dict(arrange((), None, num_proc=ranks, mode=mode).environ)
