"""Joining a job that a framework's own launcher, or another program than ``ddlrun``, has started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any, Callable, Dict, Iterator, Optional, TypeVar

from ddl import api, jobs
from ddl.bootstrap import launched
from ddl.bootstrap.environ import Identity, Settings
from ddl.bootstrap.meeting import Rendezvous
from ddl.communicator import Communicator
from ddl.launch.ask.layout import arrange
from ddl.net.address import parse_address
from ddl.store.store import StoreClient

__all__ = ["JobBeside", "LaunchedJob", "Settings", "as_rank", "call_as_rank", "join", "layout_variables"]
__all__ += ["started_ranks"]

_T = TypeVar("_T")


def join(rendezvous: Callable[[], Optional[Rendezvous]]) -> None:
    """Do what ``ddl.init`` does, in a process whose framework knows the other ranks.

    Collective, blocking. ``rendezvous`` is called where ``ddlrun`` has not said who this process is; it returns None
    for a job of one rank. Raises what ``ddl.init`` raises.
    """

    def who() -> jobs.Admission:
        settings, identity = Settings.from_environ(os.environ), launched.known(os.environ)
        if identity is not None:
            return jobs.Admission(identity, settings)
        meeting = rendezvous()
        return jobs.Admission(Identity(), settings) if meeting is None else jobs.Admission(*meeting.admission(settings))

    jobs.join(who)


@contextlib.contextmanager
def as_rank(rendezvous: Rendezvous) -> Iterator[None]:
    """Let the ``with`` block be a rank of a job that an engine has started: join it before, leave it after. Collective.

    Engines keep processes for the next job. So if the block raises, the others must be told: each gets ``Aborted``
    with what was raised here, and a driver's ``ddl.JobStore`` names this rank. Raises what ``ddl.init`` and the block
    raise.
    """
    api.init(rendezvous=rendezvous)
    try:
        yield
    except BaseException as error:
        api.abort(f"{type(error).__name__}: {error}")
        raise
    finally:
        jobs.shutdown()


def call_as_rank(rendezvous: Rendezvous, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """Call ``function`` in a block of ``as_rank``, and return what it returns."""
    with as_rank(rendezvous):
        return function(*args, **kwargs)


class JobBeside:
    """A job of just the ranks of ``rendezvous``, beside the one that this process is in, if it is in one.

    Made collectively by its ranks. ``patience``: seconds in which they have to come. ``timeout``: seconds of one of its
    operations (None: DDL_TIMEOUT). Raises what ``ddl.init`` raises; nothing is left of it then.
    """

    def __init__(self, rendezvous: Rendezvous, patience: float, timeout: Optional[float]) -> None:
        usual = Settings.from_environ(os.environ)
        settings = dataclasses.replace(usual, elastic=False, incarnation=-1, start_timeout=patience)
        settings = dataclasses.replace(settings, timeout=timeout or usual.timeout)
        self.world: Communicator = jobs.begin_job(*rendezvous.admission(settings))
        self._usual = usual.start_timeout

    def wait_at_most(self, seconds: Optional[float]) -> None:
        """Let its ranks wait so long for one another from now on; None: as long as in any job (DDL_START_TIMEOUT)."""
        self.world.job.wait_at_most(self._usual if seconds is None else seconds)

    def lead(self) -> None:
        """Let ``ddl.world()`` be this job's communicator."""
        jobs.use_job(self.world)

    def leave(self, patience: Optional[float] = None) -> None:
        """Leave it. Not collective, idempotent.

        Its store goes when all have left, or after ``patience`` seconds (None: those of an operation).
        """
        jobs.end_job(self.world, patience)


class LaunchedJob:
    """The job that srun, mpiexec or torchrun has started. ``host``: the address of rank 0's host. See ``find``."""

    def __init__(self, identity: Identity, settings: Settings) -> None:
        self._identity, self._settings = identity, settings
        self.rank, self.size = identity.rank, identity.size
        self.host = parse_address(identity.store)[0]

    @classmethod
    def find(cls) -> Optional[LaunchedJob]:
        """Return it; None if no launcher has started this process. Collective, the first time.

        Raises ``ConfigError`` and ``RendezvousError``.
        """
        settings = Settings.from_environ(os.environ)
        identity = launched.identity(os.environ, settings)
        return None if identity is None else cls(identity, settings)

    def share(self, key: str, text: Optional[str]) -> str:
        """Give all ranks the text that rank 0 passes under a new key; the others pass None, and wait for it."""
        job, patience = self._identity, self._settings.start_timeout
        client = StoreClient(job.store, job.secret, job.rank, patience, encrypt=self._settings.encrypt)
        try:
            if text is not None:
                client.set(key, text)
                return text
            return str(client.get(key, patience))
        finally:
            client.close()


def started_ranks() -> int:
    """Return how many ranks whoever has started this process says that there are; 1: nobody has. Not collective."""
    return (launched.detect(os.environ) or Identity.from_environ(os.environ)).size


def layout_variables(ranks: int, mode: str) -> Dict[str, str]:
    """Return the variables by which ``ddlrun --mode`` lays out so many ranks. Raises ``ConfigError``."""
    return dict(arrange((), None, num_proc=ranks, mode=mode).environ)
