"""What a plan is: the table of steps that is run, verified, simulated and drawn.

A *plan* says what **one rank** does in **one collective**. It knows ranks and chunks, never bytes, types or
addresses: the executor supplies those. A *chunk* is the smallest piece of data that an algorithm names; a chunk id
means the same data on every rank. The plan's lists ``input``, ``output`` and ``scratch`` name the chunks that each
buffer holds, in the order of its blocks. A step names a contiguous run of chunk *ids*, ``[first, first + count)``; a
message consists of these chunks, one after the other.

A *channel* is a sequence of steps that run in order, and needs no other channel; different channels of a plan
touch different chunks. Sending never blocks a channel: ``SEND`` only hands the chunks to the transport, which
may read them from memory until the receiver has them. So a plan may overwrite them only when it knows that they have
arrived, or when it has waited for the transport (``after_sends``); ``verify`` proves this. Receiving and ``AWAIT``
block the channel.

Ranks that share memory also read and write one another's buffers directly. They synchronise by ``NOTIFY`` and
``AWAIT``: each channel of each rank has a phase counter, which only grows.

Source: the steps are those of the multi-ring of PowerAI DDL (arXiv 1708.02188) and BlueConnect (MLSys 2019), and
further ones for shared memory.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Tuple

__all__ = ["Buffer", "Collective", "Kind", "Plan", "Step"]


class Collective(enum.IntEnum):
    """The collective (or send, or receive) that the ranks call. The numbers are part of the wire format."""

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

    INPUT = 0  #: the caller's data; no step writes it (but it may be the same memory as OUTPUT)
    OUTPUT = 1  #: the result, for the caller
    SCRATCH = 2  #: memory of the engine, shared with the host's ranks; undefined when the plan starts


class Kind(enum.IntEnum):
    """What a step does. "My" refers to the rank that executes the step."""

    SEND = 1  #: my ``src`` -> the transport to ``peers[0]``
    RECV = 2  #: from ``peers[0]`` -> my ``dst``
    RECV_REDUCE = 3  #: my ``dst`` = my ``src`` (op) what arrives from ``peers[0]``
    REDUCE_FROM = 4  #: my ``dst`` = (op) over the ``src`` of me and of all ``peers``, in ascending rank order; see onto
    COPY_FROM = 5  #: my ``dst`` = the ``src`` of ``peers[0]``
    COPY_TO = 6  #: the ``dst`` of each of ``peers`` = my ``src``
    COPY = 7  #: my ``dst`` = my ``src``
    NOTIFY = 8  #: raise my phase counter to ``phase``; a rank that awaits it then sees all my earlier steps
    AWAIT = 9  #: wait until the phase counter of each of ``peers`` is at least ``phase``


@dataclass(frozen=True)
class Step:
    """One line of the table.

    ``REDUCE_FROM``, ``COPY_FROM`` and ``COPY_TO`` touch the memory of ``peers``, which must share memory with this
    rank. Before such a step, the plan must ``AWAIT`` the peer's first ``NOTIFY`` (phase 1: "my buffers are there").
    After it, the plan must ``NOTIFY`` again, and the peer must ``AWAIT`` that before its plan ends. This is not needed
    if only the peer's SCRATCH was touched: the executor does not reuse a scratch buffer that a rank may still read.

    ``final`` marks the step that produces the finished value of its chunks; this step divides for an average. Every
    output chunk of a reducing collective is finished exactly once.

    ``onto``: in a ``REDUCE_FROM``, my own part is what my ``dst`` holds, and not what my ``src`` does.

    ``after_sends``: the step begins only when the transport has read all that this channel has sent before. A small
    message is copied by the kernel at once. A large one, or one on a transport without buffers, may stay in the
    sender's memory until it is received.
    """

    kind: Kind
    peers: Tuple[int, ...] = ()
    first: int = 0
    count: int = 0
    src: Buffer = Buffer.OUTPUT
    dst: Buffer = Buffer.OUTPUT
    phase: int = 0
    final: bool = False
    onto: bool = False
    after_sends: bool = False


@dataclass(frozen=True)
class Plan:
    """What one rank does in one collective.

    ``chunks`` is the number of chunk ids. ``input``, ``output`` and ``scratch`` list the ids of the chunks that the
    buffers hold, in block order; an empty tuple means that this rank has no such buffer. ``in_place`` says whether
    INPUT and OUTPUT may be the same memory. All-reduce, reduce and broadcast cut one buffer evenly into its blocks; in
    the other collectives, block *i* of a buffer belongs to rank *i*.
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
        """The ranks with which this plan exchanges messages through a transport, ascending."""
        wire = (Kind.SEND, Kind.RECV, Kind.RECV_REDUCE)
        return tuple(sorted({s.peers[0] for c in self.channels for s in c if s.kind in wire}))
