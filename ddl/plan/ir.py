"""What a plan is: the table of steps that is run, verified, simulated and drawn.

A *plan* says what **one rank** does in **one collective**. It knows ranks and chunks, never bytes, types or
addresses: the executor supplies those. A *chunk* is the unit that an algorithm names; a chunk id means the same
data on every rank. Where a chunk lies in a rank's buffer follows from the plan's ``input``, ``output`` and
``scratch`` lists: they name the chunks that the buffer holds, in the order of its blocks. Steps name contiguous
runs of chunk *ids*, ``[first, first + count)``; a message is the concatenation of its chunks.

A *channel* is one independent lane of steps. Within a channel, steps run in order; different channels of a plan
touch different chunks. Sending never blocks a channel: ``SEND`` only hands the chunks to the transport, which
reads them from memory until the receiver has them, so a plan may not overwrite them before it can know that they
have arrived, or has waited for the transport (``after_sends``); ``verify`` proves it. Receiving and ``AWAIT`` block
the channel.

Ranks that share memory also read and write one another's buffers directly. They meet by ``NOTIFY`` and ``AWAIT``:
each channel of each rank has one phase counter that only grows.

Source: the steps are those of the multi-ring of PowerAI DDL (arXiv 1708.02188) and BlueConnect (MLSys 2019), plus
the direct ones for shared memory.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Tuple

__all__ = ["Buffer", "Collective", "Kind", "Plan", "Step"]


class Collective(enum.IntEnum):
    """What the ranks want done. The numbers are part of the wire format."""

    ALLREDUCE = 1
    REDUCESCATTER = 2
    ALLGATHER = 3
    BROADCAST = 4
    ALLTOALL = 5
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    BARRIER = 9
    SEND = 10
    RECV = 11


class Buffer(enum.IntEnum):
    """The three buffers of an operation on one rank."""

    INPUT = 0  #: the caller's data; only read (it may be the same memory as OUTPUT)
    OUTPUT = 1  #: where the caller finds the result
    SCRATCH = 2  #: the engine's own, in shared memory; contents undefined when the plan starts


class Kind(enum.IntEnum):
    """What a step does. ``mine`` is the rank that executes the step."""

    SEND = 1  #: my ``src`` -> the transport to ``peers[0]``
    RECV = 2  #: from ``peers[0]`` -> my ``dst``
    RECV_REDUCE = 3  #: my ``dst`` = my ``src`` (op) what arrives from ``peers[0]``
    REDUCE_FROM = 4  #: my ``dst`` = (op) over me and all ``peers``, in ascending rank order, of everybody's ``src``
    COPY_FROM = 5  #: my ``dst`` = the ``src`` of ``peers[0]``
    COPY_TO = 6  #: the ``dst`` of each of ``peers`` = my ``src``
    COPY = 7  #: my ``dst`` = my ``src``
    NOTIFY = 8  #: raise my phase counter to ``phase``: all my earlier steps are visible to who awaits it
    AWAIT = 9  #: wait until the phase counter of each of ``peers`` is at least ``phase``


@dataclass(frozen=True)
class Step:
    """One line of the table.

    ``REDUCE_FROM``, ``COPY_FROM`` and ``COPY_TO`` touch the memory of ``peers``, which must share memory with this
    rank: never before an ``AWAIT`` of the peer's first ``NOTIFY`` (phase 1, "my buffers are there"), and the peer
    must ``AWAIT`` a later ``NOTIFY`` of mine before its plan ends, unless only its SCRATCH was touched (the executor
    does not reuse a scratch buffer while anybody may still read it).

    ``final`` marks the step that produces the finished value of its chunks: there an average is divided. Every
    output chunk of a reducing collective is finished exactly once on its way.

    ``after_sends``: the step begins only when the transport has read all that this channel has sent before. The
    kernel takes a small message at once; a large one, or a transport without memory of its own, may keep it until
    it is received.
    """

    kind: Kind
    peers: Tuple[int, ...] = ()
    first: int = 0
    count: int = 0
    src: Buffer = Buffer.OUTPUT
    dst: Buffer = Buffer.OUTPUT
    phase: int = 0
    final: bool = False
    after_sends: bool = False


@dataclass(frozen=True)
class Plan:
    """What one rank does in one collective.

    ``chunks`` is the number of chunk ids. ``input``, ``output`` and ``scratch`` list the ids of the chunks that the
    buffers hold, in block order; an empty tuple means that this rank has no such buffer. ``in_place`` says whether
    INPUT and OUTPUT may be the same memory. Reducing collectives and broadcast cut one buffer evenly into its
    blocks; in the others, block *i* of a buffer belongs to rank *i*.
    """

    collective: Collective
    algorithm: str
    rank: int
    size: int
    root: int
    chunks: int
    input: Tuple[int, ...]
    output: Tuple[int, ...]
    scratch: Tuple[int, ...]
    channels: Tuple[Tuple[Step, ...], ...]
    in_place: bool = False

    @property
    def peers(self) -> Tuple[int, ...]:
        """Ranks that this plan exchanges messages with through a transport, ascending."""
        wire = (Kind.SEND, Kind.RECV, Kind.RECV_REDUCE)
        return tuple(sorted({s.peers[0] for c in self.channels for s in c if s.kind in wire}))
