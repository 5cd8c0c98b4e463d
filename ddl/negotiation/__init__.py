"""Named operations: submitted in any order, run when all ranks have submitted them, in an order that all agree on.

``signature.py`` says what ranks must agree on, ``ballot.py`` how a rank tells the others what it has submitted,
``agreement.py`` what follows from all ballots, ``submissions.py`` keeps what this rank has submitted, ``negotiator.py``
runs it, ``pending.py`` is what a caller holds.
"""

from __future__ import annotations

from ddl.negotiation.negotiator import Negotiator
from ddl.negotiation.pending import Pending, Request
from ddl.negotiation.signature import Signature

__all__ = ["Negotiator", "Pending", "Request", "Signature"]
