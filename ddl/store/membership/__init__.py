"""Who belongs to a job, as ranks come and go: state machines without I/O, which the simulator runs, too.

docs/elastic.md explains the protocol. A *generation* is a list of members in the order of their ranks. Its successor is
decided by a quorum of its voters: a Paxos instance for each generation (``acceptor.py``, ``decision.py``). The store
proposes (``membership.py``, ``voting.py``); every rank has a ``Participant`` that votes, and that elects a new store
when the store's process has ended (``election.py``). What all of them say to one another is in ``records.py``.
"""

from __future__ import annotations
