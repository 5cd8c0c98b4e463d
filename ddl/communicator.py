"""``Communicator``: a group of ranks and the collectives on it.

Every method that names ranks means ranks *of this communicator*. All ranks of a communicator make the same collective
calls in the same order, from one thread at a time.

Arrays are numpy arrays, or anything that speaks DLPack, on the CPU or on a CUDA GPU (docs/gpu.md); arrays from
``ddl.empty`` move fastest. Verbs that return a new array return one of the same framework for an array on a GPU, and a
numpy array for any other. They also take a number or a list, of the type that numpy gives it (whole numbers: int64; an
empty list: float64). Complex numbers can be moved, summed and averaged. ``op`` is an operator, ``ddl.Sum``, or its
name, "sum".

After a ``CommunicatorError`` the contents of the arrays under way are undefined, and every later call raises the same
error.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from operator import index
from types import TracebackType
from typing import Mapping, Optional, Sequence, Tuple, Type

import numpy as np

from ddl._comm.core_calls import CoreCalls
from ddl._comm.group import Group
from ddl._comm.job import Job
from ddl._comm.splitting import part_of
from ddl._comm.verbs import PreparedOperation, Verbs, Work
from ddl.bootstrap.environ import Identity
from ddl.errors import InvalidArgument, InvalidState
from ddl.plan.ir import Collective
from ddl.topology import Topology
from ddl.tuning.select import Lines
from ddl.tuning.table import Table

__all__ = ["Communicator", "Metrics", "PreparedOperation", "Work"]

_LONGEST_TIMEOUT = 1e9  #: seconds


@dataclass(frozen=True)
class Metrics:
    """What a communicator has done on this rank since it was made. All but ``late`` only grow.

    ``operations``: collectives that have ended; a call that exchanges sizes first is two. ``sent_messages``,
    ``sent_bytes``: see ``Communicator.traffic``. ``waited_seconds``: how long collectives were under way while nothing
    moved, because other ranks or the network were not there yet (but for waits of some 2 us or less); where several
    overlap, it may exceed the time that has passed. ``late``: the ranks that come late to operations now, each with
    its seconds per operation, on average. Found out on all ranks of the job together, over some seconds, and the same
    on all within a moment. Where ranks come and go (docs/elastic.md), ``generation`` is the number of the job's list of
    ranks, and ``paused_seconds`` how long this process has waited, in all, for others to agree on the next one.
    """

    operations: int
    sent_messages: int
    sent_bytes: int
    waited_seconds: float
    late: Mapping[int, float]
    generation: int = 0
    paused_seconds: float = 0.0


class Communicator(Verbs):
    """A group of ranks. Made by ``ddl.init`` (the world) and by ``split``.

    Thread-safety: one thread submits at a time; any thread may wait for a ``Work``.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._core = group.core
        self._calls = CoreCalls(group.core, group.rank, group.size)
        self.rank = group.rank
        self.size = group.size
        self._finalizer: Optional[weakref.finalize[..., Communicator]] = None

    @classmethod
    def _of(cls, group: Group) -> Communicator:
        """Return the communicator of a group that was made now; once it is dropped, the group is closed, but later.

        Not at once: an object may be collected in any thread at any moment, and closing waits for other threads.
        """
        communicator = cls(group)
        communicator._finalizer = weakref.finalize(communicator, group.job.dropped.add, group)
        communicator._finalizer.atexit = False
        return communicator

    def __repr__(self) -> str:
        return f"<ddl.Communicator number {self._group.number}, rank {self.rank} of {self.size}>"

    def split(
        self, color: Optional[int], key: Optional[int] = None, *, deterministic: bool = False
    ) -> Optional[Communicator]:
        """Return a new communicator of the ranks that passed the same ``color``; None for those that passed None.

        Collective over this communicator, blocking. Ranks are ordered by ``key`` (default: their rank here).
        ``deterministic``, the same for all ranks of a color: sums depend on the number of ranks only, bit for bit
        (docs/deterministic.md); parts of a deterministic communicator always are. Raises ``InvalidArgument`` on the
        ranks of a color that differ in it, ``ResourceError`` on all ranks of a color of which one lacks memory, say.
        Close it when it has served its purpose: see ``close``.
        """
        return self._split(color, key, deterministic=deterministic)

    def _split(
        self,
        color: Optional[int],
        key: Optional[int] = None,
        tuned: Optional[Mapping[Collective, Lines]] = None,
        racks: Sequence[Sequence[int]] = (),
        deterministic: bool = False,
        wire: Optional[str] = None,
    ) -> Optional[Communicator]:
        """As ``split``; the new communicator chooses algorithms by ``tuned`` and is laid out by ``racks``.

        ``wire``, alike on all its ranks: a key of ``environ.WIRE_CODECS``, or "float32"; by default, as here.
        """
        if color is not None and not isinstance(color, (int, np.integer)):
            raise InvalidArgument(f"split: color={color!r} is neither a whole number nor None")
        if key is not None and not isinstance(key, (int, np.integer)):
            raise InvalidArgument(f"split: key={key!r} is neither a whole number nor None")
        part = part_of(self._group, self.allgather_object, color, key, tuned, racks, deterministic, wire)
        return None if part is None else Communicator._of(part)

    def subset(self, ranks: Sequence[int], *, timeout: Optional[float] = None) -> Communicator:
        """Return a new communicator of ``ranks``, in that order; they become its ranks 0, 1, ...

        Collective over these ranks only, which all pass the same ones; blocking. ``timeout``: seconds that one of its
        operations may take (default: DDL_TIMEOUT). Raises ``InvalidArgument`` if this rank is none of them, and
        ``RendezvousError`` if one of them does not come in time (DDL_START_TIMEOUT).
        """
        try:
            given_ranks = [index(rank) for rank in ranks]
        except TypeError:
            raise InvalidArgument(f"subset: {ranks!r:.200} must be a list of ranks") from None
        if len(set(given_ranks)) < len(given_ranks) or self.rank not in given_ranks:
            raise InvalidArgument(f"subset: rank {self.rank} must be among {given_ranks}, and each of them once")
        for rank in given_ranks:
            self._calls.check_rank("subset", "a member", rank)
        return Communicator._of(self._group.subset(given_ranks, timeout))

    def _use(self, table: Table) -> None:
        """Choose by ``table``, which all its ranks have alike, in what is planned from now on."""
        self._group.use(table)

    def set_timeout(self, seconds: float) -> None:
        """Let operations that this rank submits from now on take so long (at first: DDL_TIMEOUT). Not collective.

        Also those that were prepared before. Raises ``InvalidArgument`` unless ``seconds`` is above 0 and below 1e9.
        """
        try:
            fits = 0 < seconds < _LONGEST_TIMEOUT
        except TypeError:
            fits = False
        if not fits:
            raise InvalidArgument(f"set_timeout: {seconds!r} must be a number of seconds above 0 and below 1e9")
        self._core.set_timeout(seconds)

    @property
    def timeout(self) -> float:
        """How many seconds an operation that this rank submits now may take."""
        return self._core.timeout

    @property
    def topology(self) -> Topology:
        """How its ranks are laid out."""
        return self._group.topology

    @property
    def number(self) -> int:
        """Which communicator of its job it is, the same number on all of its ranks. For DDL's own modules."""
        return self._group.number

    @property
    def job(self) -> Job:
        """The job that this rank is in. For DDL's own modules."""
        return self._group.job

    @property
    def identity(self) -> Identity:
        """Which process of its job this rank is: also by host. For DDL's own modules."""
        return self._group.job.identity

    @property
    def homogeneous(self) -> bool:
        """Whether the job has the same number of ranks on all hosts: on all that share memory."""
        return len({len(host) for host in self.job.hosts}) == 1

    @property
    def who(self) -> str:
        """How its errors begin: ``[rank 1/4 host b]``, and which rank of it that is if it has only some of them."""
        return self._group.who

    def close(self) -> None:
        """Close a communicator that ``split`` or ``subset`` made; what is under way fails with ``Aborted``. Idempotent.

        Not collective. The world communicator is closed by ``shutdown``, with all that came of it; to close it here
        raises ``InvalidState``. One that is dropped
        without ``close`` is closed when this process makes its next communicator, if no operation of it is under way
        or prepared; until then it keeps its connections, threads and memory. ``with ddl.split(color) as part:`` closes
        it at the end of the block.
        """
        if self._finalizer is None:
            raise InvalidState(
                "the world communicator is closed by ddl.shutdown(); close() and with are for those that split and "
                "subset have made"
            )
        self._finalizer.detach()
        self._group.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def abort(self, reason: str = "") -> None:
        """Break the communicator on all ranks: everything under way and every later call raises ``Aborted``."""
        self._core.fail("Aborted", self.rank, f"abort() was called: {reason or 'no reason given'}", True)

    def traffic(self) -> Tuple[int, int]:
        """Return how many messages with data, and how many bytes, this rank has sent through transports so far.

        Not collective, does not block. What ranks read directly from one another's memory is no message.
        """
        return self._core.traffic()

    @property
    def wire(self) -> str:
        """What large all-reduces of float32 are written as between hosts: "float32", "bf16", "fp16" or "int8".

        DDL_WIRE sets it for a whole job, but not to "int8"; an adapter's ``compression`` sets it for gradients.
        """
        return "float32" if self.deterministic else self._group.wire

    @property
    def deterministic(self) -> bool:
        """Whether sums depend on the number of ranks only, bit for bit, and not on hosts, sizes or buckets."""
        return self._group.deterministic

    def metrics(self) -> Metrics:
        """Return what this communicator has done so far, and which of its ranks come late: see ``Metrics``.

        Not collective, does not block; any thread may call it, a few times a second.

        >>> ddl.metrics().late
        {3: 0.0121}
        """
        totals = self._core.collectives()
        job = self._group.job
        so_far = (totals.operations, *self.traffic(), totals.waited, self._group.late())
        return Metrics(*so_far, job.generation, job.paused_seconds)
