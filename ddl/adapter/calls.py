"""What an adapter asks of a communicator besides its verbs.

A verb of ``Communicator`` takes arrays, makes new ones for results, and has ranks tell their sizes. A framework whose
own verbs write into arrays that are there, or whose ranks know all sizes, needs none of that: its adapter describes a
``Call`` of the core, and runs or starts it by ``calls_of``.
"""

from __future__ import annotations

from typing import Any, NoReturn, Optional, Protocol, Type, TypeVar

import numpy as np

from ddl._comm.core_calls import Call, check_splits
from ddl._comm.verbs import Work
from ddl.communicator import Communicator
from ddl.errors import CommunicatorError
from ddl.plan.ir import Collective
from ddl.reduce_op import ReduceOp

__all__ = ["Call", "Calls", "Collective", "calls_of", "check_splits"]

T = TypeVar("T")


class Calls(Protocol):
    """The calls of one communicator; see ``calls_of``.

    All ranks make the same calls in the same order, from one thread at a time, among those of the verbs. What a call
    raises is what the verbs raise.
    """

    def run(self, call: Call[T], label: str = "") -> T:
        """Make the call, wait for its end and return its ``result``. ``label`` appears in errors."""

    def run_alike(self, collective: Collective, x: Any, out: Any, op: ReduceOp, root: int, /) -> None:
        """Read ``x`` and write ``out``, where these say all of the sizes, and wait for the end: the quickest call."""

    def start(self, call: Call[Any], label: str = "") -> Work:
        """Make the call and return the handle of what is now under way."""

    def attempt(self, call: Call[Any]) -> Optional[Work]:
        """Run a call whose arrays say all of the sizes, for a caller that must not sleep: see ``Negotiator``.

        Where it would sleep, return what goes on instead; the arrays must live until that has ended.
        """

    def exchange(self, purpose: Collective, row: np.ndarray) -> np.ndarray:
        """Return the rows (int64, as long on all ranks) of all ranks, before a call of ``purpose``. Blocks."""

    def check_rank(self, verb: str, what: str, rank: Any) -> None:
        """Raise ``InvalidArgument`` unless ``rank``, the argument ``what`` of ``verb``, is a rank."""

    def check_peer(self, verb: str, rank: Any) -> None:
        """Raise ``InvalidArgument`` unless ``rank`` is another rank than this one."""

    @property
    def failed(self) -> bool:
        """Whether the communicator has failed: every later call raises why."""

    def check(self) -> None:
        """Raise the error with which the communicator has failed, if it has."""

    def fail(self, kind: Type[CommunicatorError], culprit: int, reason: str) -> NoReturn:
        """Let the communicator fail, on all of its ranks, and raise the error here.

        ``kind``: a class of ddl.errors. ``culprit``: the rank that is to blame, or -1.
        """


def calls_of(communicator: Communicator) -> Calls:
    """Return the calls of ``communicator``. They live as long as it does, and cost what its own verbs cost."""
    return communicator._calls
