"""The errors DDL raises; the native core raises the same classes under the same names.

::

    Error
    ├─ InvalidArgument (ValueError)     found before anything was sent; communicator unharmed
    │   └─ NotSupported (NotImplementedError, so also a RuntimeError)  an operator that a verb does not have
    ├─ InvalidState                     before init, after shutdown or abort
    ├─ ConfigError                      environment, hostfile, mode string: names the variable and the value
    ├─ RendezvousError (TimeoutError)   lists the ranks that never came
    ├─ LeftOut                          this process is in the job no more: ranks went on without it, or none can
    ├─ WaitTimeout (TimeoutError)       ``Work.wait(timeout)`` ran out; the work goes on, nothing is broken
    ├─ CommunicatorError                the communicator is broken; every later call raises the same first error
    │   ├─ PeerLost (ConnectionError)   a rank died, left or became unreachable
    │   ├─ CollectiveTimeout (TimeoutError)  a rank stayed silent for the whole deadline
    │   ├─ CollectiveMismatch           ranks called different operations; the message shows both sides
    │   ├─ ProtocolError                bytes that are not DDL's, or not of this version
    │   └─ Aborted                      a rank called ``abort()``
    ├─ RankFailed (RuntimeError)        a rank of ``ddl.run`` failed; the message has its traceback
    ├─ ResourceError                    errno and call: descriptors, memory, address in use
    └─ InternalError                    a bug in DDL
"""

from __future__ import annotations

from typing import Any, Tuple

__all__ = [
    "Aborted",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "CommunicatorError",
    "ConfigError",
    "Error",
    "InternalError",
    "InvalidArgument",
    "InvalidState",
    "LeftOut",
    "NotSupported",
    "PeerLost",
    "ProtocolError",
    "RankFailed",
    "RendezvousError",
    "ResourceError",
    "WaitTimeout",
]


class Error(Exception):
    """Root of everything DDL raises on purpose."""

    reason = ""  #: the text without whose error it is, and in which operation; empty: the same as the text
    who = ""  #: whose error it is, ``[rank 1/4 host b]``, if the text does not say so; the message begins with it

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.who} {text}" if self.who else text


class InvalidArgument(Error, ValueError):
    """An argument was refused before anything was sent; the communicator is unharmed."""

    on_all_ranks = False  #: ranks had exchanged what does not go together: all raise it, and none waits for another


class NotSupported(InvalidArgument, NotImplementedError):
    """A verb cannot do what was asked for, whatever the array: an operator that it does not have."""


class InvalidState(Error, RuntimeError):
    """The call came before ``init`` or after ``shutdown``."""


class ConfigError(Error):
    """The environment or a configuration value is wrong; the message names it."""


class RendezvousError(Error, TimeoutError):
    """Some ranks never came; the message lists them."""


class LeftOut(Error, RuntimeError):
    """This process is in the job no more: the other ranks went on without it, or the job cannot go on.

    Only where ranks come and go (docs/elastic.md). The message says why. ``asked``: its place was wanted for other
    things (its host left the list of hosts, say), and it left between two steps: it may end as if all were done.
    """

    def __init__(self, text: str = "", *, asked: bool = False) -> None:
        super().__init__(text)
        self.asked = asked


class WaitTimeout(Error, TimeoutError):
    """``Work.wait(timeout)`` ran out. The work goes on; wait again or abort."""


class CommunicatorError(Error, RuntimeError):
    """The communicator is broken; every later call on it raises this same error."""


class PeerLost(CommunicatorError, ConnectionError):
    """A rank died, left, or cannot be reached any more."""

    # Without it, an explicit call of ``__new__`` finds RuntimeError's, which refuses: tblib calls it, and so does Dask.
    def __new__(cls, *args: object) -> PeerLost:
        return OSError.__new__(cls, *args)


class CollectiveTimeout(CommunicatorError, TimeoutError):
    """An operation did not finish within its deadline; the message names the silent rank."""

    def __new__(cls, *args: object) -> CollectiveTimeout:  # as PeerLost
        return OSError.__new__(cls, *args)


class CollectiveMismatch(CommunicatorError):
    """Ranks called operations that do not match; the message shows both sides."""


class ProtocolError(CommunicatorError):
    """A peer sent bytes that are not DDL's, or not of this version."""


class Aborted(CommunicatorError):
    """``abort()`` was called on this or another rank."""


class RankFailed(Error, RuntimeError):
    """A rank of ``ddl.run`` raised or died; ``rank`` is its number, and the message has its traceback.

    A ``rank`` of -1: no rank failed, but the process that runs them did, or was stopped.
    """

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.rank, *self.args), vars(self)  # ``args`` alone are not what ``__init__`` takes


class ResourceError(Error, OSError):
    """The system refused something: the message has the call and its errno."""


class InternalError(Error):
    """A bug in DDL; please report it with its message."""


for _kind in (InvalidArgument, InvalidState):  # AutoGraph of TensorFlow hands on errors that have no other constructor
    _kind.__init__ = Exception.__init__  # type: ignore[method-assign]
