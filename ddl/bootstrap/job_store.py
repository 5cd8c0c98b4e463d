"""``JobStore``: the store of a job, kept by the program that starts its ranks."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Optional, Type

from ddl import clock
from ddl.bootstrap.environ import Settings
from ddl.bootstrap.meeting import serve
from ddl.errors import InvalidArgument, RankFailed

__all__ = ["JobStore"]

_SETTLES = 2.0  # seconds that a verdict has to be there after an engine has told of a failure
_RETRY = 0.005  # seconds between two looks


class JobStore:
    """The store of a job of ``size`` ranks, in a program that outlives them: an engine's driver.

    Give ``invitation`` to all ranks, as the ``share`` of their ``ddl.Rendezvous``. Anyone who knows that text can join
    the job. This program is no rank. If the job fails, it knows which rank was the cause. As a context it says so: an
    error that ends the block, such as the engine's "worker died", becomes the cause of a ``RankFailed`` that names the
    rank and its host. DDL_INTERFACE: the address by which the ranks reach this host. DDL_ENCRYPT=1: all connections of
    the job are encrypted. DDL_HOST_TIMEOUT: seconds that a host may be silent. ``close`` lets ranks that are still
    there fail.

    Raises ``InvalidArgument`` for a size below 1, ``ConfigError`` for a wrong environment, ``ResourceError`` if there
    is no thread or port.

    >>> with ddl.JobStore(2) as store:
    ...     engine.run(train, store.invitation)
    """

    def __init__(self, size: int) -> None:
        if type(size) is not int or size < 1:
            raise InvalidArgument(f"JobStore: size={size!r}; a job has at least one rank")
        self.size = size
        settings = Settings.from_environ(os.environ)
        self._server, invitation = serve(size, settings, "there is no thread for the job's store", one_host=False)
        self.invitation = invitation.text()  #: a text; keep it secret

    @property
    def failure(self) -> Optional[RankFailed]:
        """The first failure of the job; None if there is none. Does not block."""
        verdict = self._server.first_failure
        if verdict is None:
            return None
        culprit, reason = verdict["culprit"], verdict["reason"]
        host = self._server.host_of(culprit)
        who = f"rank {culprit} of {self.size}" if culprit >= 0 else f"a job of {self.size} ranks"
        who += f" (host {host})" if host else ""
        return RankFailed(culprit, f"{who} failed: {verdict['kind']}: {reason}")

    def close(self) -> None:
        """End the store. Idempotent."""
        self._server.close()

    def __enter__(self) -> JobStore:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            if isinstance(error, Exception):
                self._explain(error)
        finally:
            self.close()

    def _explain(self, error: Exception) -> None:
        """Raise the job's failure, if there is one, with ``error`` as its cause."""
        deadline = clock.now() + _SETTLES
        while self.failure is None and clock.now() < deadline:  # an engine may see the end of a process first
            time.sleep(_RETRY)
        if self.failure is not None:
            raise self.failure from error
