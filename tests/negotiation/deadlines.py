"""The deadline of named operations, for tests that let it come once all that is healthy is over.

A negotiator takes it from DDL_TIMEOUT when it is made, and ranks have still to connect and to meet then.
"""

from __future__ import annotations

import os
import time

import ranks

from ddl import clock
from ddl.negotiation import Negotiator


def set_deadline(negotiator: Negotiator, seconds: float) -> None:
    """Give each operation that this rank submits from now on so much time, as DDL_TIMEOUT would have."""
    negotiator._timeout = seconds


def expire(negotiator: Negotiator) -> None:
    """Let the time of what rank 0 has pending be over. All ranks call it: before, or in a thread while they wait.

    Each of them must have submitted, or be about to submit, what the others do not. It waits for that, and until all
    ranks know it, so none is late.
    """
    submissions = negotiator._submissions
    while not submissions._pending:
        time.sleep(0.001)
    (pending,) = list(submissions._pending.values())
    while submissions.rounds < pending.round + 3:
        time.sleep(0.001)
    ranks.meet()
    if os.environ["DDL_RANK"] == "0":
        clock.shift(max(0.0, pending._deadline - clock.now()))
