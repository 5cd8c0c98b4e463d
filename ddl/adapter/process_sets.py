"""Process sets: some ranks of the job, and the named operations among them (``ddl.negotiation``).

The set of all ranks is always there: ``global_process_set``. ``add_process_set`` makes others. All ranks call it alike,
even those that are not in the set, so that a set has the same number everywhere. Each set negotiates by itself and
waits for no other set.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from ddl import api
from ddl.communicator import Communicator
from ddl.errors import InvalidArgument, InvalidState
from ddl.negotiation import Negotiator, Request, Signature
from ddl.negotiation.pending import Waitable

__all__ = ["ProcessSet", "ProcessSets"]

Absent = Callable[[Signature], Callable[[Communicator], Waitable]]


class ProcessSet:
    """Some ranks of the job, in ascending order. It can be used once ``add_process_set`` or ``init`` was given it.

    ``ranks_or_comm``: ranks of the job, or an mpi4py communicator of them.
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self.mpi_comm: Any = None  #: the communicator that it was made of, as in Horovod
        if hasattr(ranks_or_comm, "allgather"):
            self.mpi_comm = ranks_or_comm
            ranks_or_comm = ranks_or_comm.allgather(api.rank())
        self.ranks: Optional[List[int]] = None if ranks_or_comm is None else sorted(int(rank) for rank in ranks_or_comm)
        self.process_set_id: Optional[int] = None
        self._negotiator: Optional[Negotiator] = None
        self._communicator: Optional[Communicator] = None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def __str__(self) -> str:
        """Return what Horovod's prints: scripts compare and log it."""
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    def _check(self) -> List[int]:
        if self.process_set_id is None or self.ranks is None:
            raise InvalidState(f"{self!r} is not in use; pass it to init or add_process_set, on all ranks alike")
        return self.ranks

    def included(self) -> bool:
        """Return whether this rank is in the set."""
        return api.rank() in self._check()

    def size(self) -> int:
        """Return the number of ranks in the set."""
        return len(self._check())

    def rank(self) -> int:
        """Return this rank's number in the set. Raises ``InvalidArgument`` if it is not in it."""
        return self.index(api.rank())

    def index(self, rank: int) -> int:
        """Return the number in the set of a rank of the job. Raises ``InvalidArgument`` if it is not in it."""
        ranks = self._check()
        if rank not in ranks:
            raise InvalidArgument(f"{api.world().who} rank {rank} is not in {self!r}")
        return ranks.index(rank)

    @property
    def communicator(self) -> Optional[Communicator]:
        """A communicator of the set for calls in the same order on all its ranks; None if this rank is not in it.

        That of all ranks is the world; another one is made when it is first asked for, which all ranks of the set do.
        """
        if not self.included():
            return None
        if self.process_set_id == 0:
            return api.world()
        if self._communicator is None:
            self._communicator = api.world().subset(self._check())
        return self._communicator

    @property
    def negotiator(self) -> Negotiator:
        """What runs named operations. Raises ``InvalidArgument`` if this rank is not in the set."""
        negotiator = self._negotiator
        if negotiator is None:
            self.index(api.rank())  # says why
            raise InvalidState(f"{self!r} is being removed")
        return negotiator

    def _leave(self, reason: str) -> None:
        """Close what it has; it is not in use any more."""
        if self._negotiator is not None:
            self._negotiator.close(reason)
        if self._communicator is not None:
            self._communicator.close()
        self.process_set_id = self._negotiator = self._communicator = None


class ProcessSets:
    """The process sets of this process's job, for one adapter. ``absent``: see ``Negotiator``."""

    def __init__(self, absent: Absent) -> None:
        self._absent = absent
        self._lock = threading.RLock()
        self._world: Optional[Communicator] = None
        self._sets: Dict[int, ProcessSet] = {}
        self._next = 0
        self.everybody = ProcessSet(None)  #: all ranks; the object outlives ``shutdown`` and serves the next job

    def open(self) -> ProcessSet:
        """Return the set of all ranks of the job of now. The first call is collective on the world, blocking."""
        world = api.world()
        if self._world is not world:
            with self._lock:
                if self._world is not world:
                    self._forget("the ranks of the job have changed" if self._world is not None else "")
                    # One that joins a running job is told which ranks there will be, and has no part in them yet.
                    self.everybody.ranks = list(range(world.identity.size))
                    self._put_to_use(self.everybody, world, world.split(0))
                    self._world = world
        return self.everybody

    def add(self, process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
        """Put a set to use and return it. All ranks of the job call it alike; blocks on those that are in the set.

        Raises ``InvalidArgument`` for a set of unknown ranks or of none, or one that is in use already, and
        ``RendezvousError`` if not all of its ranks come in time (DDL_START_TIMEOUT).
        """
        self.open()
        world = api.world()
        new = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
        with self._lock:
            ranks = new.ranks or []
            if not ranks or len(set(ranks)) < len(ranks) or not 0 <= ranks[0] <= ranks[-1] < world.size:
                known = f"0 to {world.size - 1}"
                raise InvalidArgument(f"{world.who} {new!r} needs ranks of {known}, each once")
            if new.process_set_id is not None or any(ranks == known.ranks for known in self._sets.values()):
                raise InvalidArgument(f"{world.who} a process set of ranks {ranks} is in use already")
            self._put_to_use(new, world, world.subset(ranks) if world.rank in ranks else None)
        return new

    def remove(self, process_set: ProcessSet) -> bool:
        """Put a set out of use, when all of its ranks have asked for it; return whether it was in use.

        All ranks of the job call it alike; blocks on those that are in the set. The set of all ranks stays. Raises
        ``PeerLost`` if one of its ranks is lost, and whatever else has broken it; then it stays, of no use, until
        ``shutdown``.
        """
        with self._lock:
            number = process_set.process_set_id
            if not number or self._sets.get(number) is not process_set:
                return False
        if process_set.included():
            name = "remove_process_set"
            process_set.negotiator.run(
                Request(Signature(name), lambda communicator: communicator.barrier_async(), name)
            )
        with self._lock:
            del self._sets[number]
            process_set._leave(f"{process_set!r} has been removed")
        return True

    def by_number(self) -> Dict[int, ProcessSet]:
        """Return the sets in use by their numbers."""
        return dict(self._sets)

    def close(self) -> None:
        """Put all sets out of use: before ``shutdown``. Not collective. Idempotent."""
        with self._lock:
            self._forget("DDL has been shut down")

    def _put_to_use(self, new: ProcessSet, world: Communicator, communicator: Optional[Communicator]) -> None:
        """Give a set its number and, if this rank is in it, what negotiates on ``communicator``."""
        assert new.ranks is not None
        if communicator is not None:
            who = f"{world.who} process set {self._next} of ranks {new.ranks}:" if self._next else world.who
            new._negotiator = Negotiator(communicator, self._absent, who, new.ranks)
        new.process_set_id = self._next
        self._sets[self._next] = new
        self._next += 1

    def _forget(self, why: str) -> None:
        for process_set in self._sets.values():
            process_set._leave(why)
        self._sets.clear()
        self._next = 0
        self._world = None
