"""DDL_CONNECTIONS: several connections for one stream: right values, what goes over each, and who may make one."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from typing import Any, Dict, List, Sequence

import numpy as np
import pytest
import ranks
from core.faults import descriptors, until_all_are_connected
from core.jobs import connected
from core.values import check_equal, placed
from hang_up import hang_up_within

import ddl
import ddl._comm.connector
from ddl import _core
from ddl.bootstrap.peer_handshake import connect_data

pytestmark = pytest.mark.processes

KIB, MIB = 1 << 10, 1 << 20
IN_FLIGHT = 2  #: pieces of a large all-reduce, each with connections of its own (ddl/tuning/select.py)
#: One byte, both sides of the limit to large operations, of a segment, of a piece; several pieces and odd ends.
SIZES = [1, 3, 16 * KIB, 16 * KIB + 1, 256 * KIB - 1, 256 * KIB, 1_000_003, 2 * MIB + 1, 4 * MIB + 77, 9_999_991]


def allreduced(nbytes: int, salt: int, shared: bool) -> None:
    """Bytes that say where they are from; Max has the answer of one rank per place, which none may lose."""
    rank, size = ddl.rank(), ddl.size()
    place = np.arange(nbytes, dtype=np.int64)
    owner = (place // 7 + salt) % size
    values = (place % 120 + 1 + salt % 7).astype(np.uint8)
    x = placed(np.where(owner == rank, values, np.uint8(0)), shared)
    ddl.allreduce_(x, op=ddl.Max)
    check_equal(x, values, f"Max of {nbytes} bytes")
    x[:] = place % 31 + rank
    ddl.allreduce_(x, op=ddl.Sum)
    check_equal(x, ((place % 31) * size + size * (size - 1) // 2).astype(np.uint8), f"Sum of {nbytes} bytes")


def right_values(sizes: Sequence[int]) -> int:
    for number, nbytes in enumerate(sizes):
        allreduced(nbytes, number, shared=number % 2 == 0)
    works = [ddl.allreduce_async(np.full(700_001, float(n + ddl.rank())), op=ddl.Sum) for n in range(6)]
    size = ddl.size()
    for number, work in enumerate(works):
        got = work.wait()
        assert (got == size * number + size * (size - 1) / 2).all(), number
    gathered = ddl.allgather(np.full(300_000 + ddl.rank(), ddl.rank()))
    assert gathered.size == 300_000 * size + size * (size - 1) // 2 and (np.diff(gathered) >= 0).all()
    return len(sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("connections", "size"), list(itertools.product([1, 2, 3], [2, 3])))
def test_right_values(connections: int, size: int) -> None:
    sizes = [*SIZES, 16 * MIB] if size == 2 else SIZES
    job = connected("tcp", DDL_CONNECTIONS=str(connections))
    assert ranks.run(size, right_values, sizes, **job) == [len(sizes)] * size


@pytest.mark.few(1)
@pytest.mark.parametrize(("transport", "codec"), [("hybrid", ""), ("uneven", ""), ("tcp", "bf16")])
def test_with_other_layouts_and_with_a_codec(transport: str, codec: str) -> None:
    """Values up to 8 bits go through bfloat16 unharmed."""
    job = connected(transport, DDL_CONNECTIONS="2", DDL_WIRE=codec)
    assert ranks.run(4, right_values, SIZES[3:8], **job) == [5] * 4


# --- how many there are, and what goes over each ---------------------------------------------------------------------


def received_by_connection() -> List[int]:
    """Bytes that each TCP connection of this process has received, as the kernel counts them (linux/tcp.h)."""
    counts = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as sock:
                if sock.family != socket.AF_INET or sock.type != socket.SOCK_STREAM:
                    continue
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue  # closed meanwhile
        if info[0] == 1:  # established
            counts.append(int.from_bytes(info[128:136], "little"))
    return sorted(counts, reverse=True)


def large_traffic(rounds: int) -> List[int]:
    """What came over each connection of this rank, ``rounds`` large operations after they were all made."""
    x = np.ones(16 * MIB, np.uint8)
    ddl.allreduce_(x, op=ddl.Max)
    ddl.barrier()
    until_all_are_connected()
    for _ in range(rounds):
        ddl.allreduce_(x, op=ddl.Max)
    ddl.barrier()
    counts = received_by_connection()
    ddl.barrier()  # a rank that ends closes its connections
    return counts


def test_as_many_connections_as_were_asked_for() -> None:
    """One per piece in flight more; the connections of small operations and to the store do not become more."""
    counts = []
    for connections in (1, 2, 3):
        first, other = ranks.run(2, large_traffic, 1, **connected("tcp", DDL_CONNECTIONS=str(connections)))
        assert len(first) == len(other)
        counts.append(len(first))
    assert np.diff(counts).tolist() == [IN_FLIGHT] * 2, counts


def test_every_connection_carries_data() -> None:
    """Which one does is up to who is ready first, but none stays idle in 12 large operations (192 MiB)."""
    for connections in (2, 3):
        for counts in ranks.run(2, large_traffic, 12, **connected("tcp", DDL_CONNECTIONS=str(connections))):
            busy = sum(count > 128 * KIB for count in counts)
            assert busy == connections * IN_FLIGHT, f"{busy} carry data, {connections} per piece: {counts}"


# --- ranks that do not agree, connections that come late ------------------------------------------------------------


def not_alike() -> str:
    try:
        return f"right {right_values(SIZES)}"
    except ddl.ProtocolError as error:
        return f"ProtocolError {error}"


@pytest.mark.few(2)
@pytest.mark.parametrize(("even", "odd"), [(1, 3), (3, 1), (2, 3), (3, 2)])
def test_other_numbers_on_other_ranks_work_or_are_told(even: int, odd: int) -> None:
    """Who expects several works with fewer. Who expects one is told where several messages reach it at a time."""
    env = [{"DDL_CONNECTIONS": str(number)} for number in (even, odd)]
    answers = ranks.run(2, not_alike, env_of=lambda rank: env[rank], **connected("tcp"))
    if 1 not in (even, odd):
        assert answers == [f"right {len(SIZES)}"] * 2, answers
    elif answers[0].startswith("right"):
        assert answers == [f"right {len(SIZES)}"] * 2, answers
    else:
        assert all(text.startswith("ProtocolError") and "same DDL settings" in text for text in answers), answers


def with_late_connections(late: str) -> Dict[str, Any]:
    """Rank 1 makes some of its connections late; the operations that can begin without them do.

    The first connections are half a second late, the others come when one operation has ended without them.
    """
    connect, one_has_ended = ddl._comm.connector.connect_data, threading.Event()

    def later(places: Any, secret: bytes, hello: Dict[str, Any], deadline: float, *rest: Any, **named: Any) -> Any:
        number = hello["stream"] // _core.STREAMS
        large = hello["stream"] % _core.STREAMS >= _core.CHANNELS
        if large and number == 0 and late == "first":
            time.sleep(0.5)
        if large and number != 0 and late == "others":
            one_has_ended.wait(100)
        return connect(places, secret, hello, time.monotonic() + 60, *rest, **named)

    ddl._comm.connector.connect_data = later
    try:
        ddl.init()
        core = ddl.world()._core
        end, calls = time.monotonic() + 60, 0
        while time.monotonic() < end:
            allreduced(3 * MIB + calls, calls, shared=False)
            calls += 1
            done = np.array([core.connected(1 - ddl.rank(), 3 * _core.STREAMS - _core.CHANNELS - 1)], np.uint8)
            done[0] = all(
                core.connected(1 - ddl.rank(), _core.stream_of(1 + slot, 0) + n * _core.STREAMS)
                for slot, n in itertools.product(range(IN_FLIGHT), range(3))
            )
            if ddl.allreduce(done, op=ddl.Min)[0]:
                break
            one_has_ended.set()
        complete = bool(ddl.allreduce(done, op=ddl.Min)[0])
        for more in range(5):
            allreduced(5 * MIB + more, more, shared=True)
        return {"calls": calls, "complete": complete}
    finally:
        ddl._comm.connector.connect_data = connect


@pytest.mark.slow
@pytest.mark.parametrize("late", ["first", "others"])
def test_connections_that_come_late(late: str) -> None:
    answers = ranks.run(2, with_late_connections, late, initialise=False, **connected("tcp", DDL_CONNECTIONS="3"))
    for answer in answers:
        assert answer["complete"] and answer["calls"] >= 1, answer
    if late == "others":
        assert answers[0]["calls"] > 1, answers


def leave_while_a_connection_is_made() -> List[float]:
    """Rank 1 is slow to take a connection that rank 0 has and uses already; rank 0 is through, and leaves."""
    connect = ddl._comm.connector.connect_data

    def later(places: Any, secret: bytes, hello: Dict[str, Any], deadline: float, *rest: Any, **named: Any) -> Any:
        sock = connect(places, secret, hello, deadline, *rest, **named)
        if hello["stream"] // _core.STREAMS == 1:
            time.sleep(0.6)
        return sock

    ddl._comm.connector.connect_data = later
    try:
        ddl.init()
        if ddl.rank() == 0:
            time.sleep(0.3)  # rank 1 has connected
        x = np.ones(50_000, np.float32)
        ddl.allreduce_(x, op=ddl.Sum)
        ddl.shutdown()
        return [float(x.min()), float(x.max())]
    finally:
        ddl._comm.connector.connect_data = connect


def test_who_leaves_may_have_sent_over_a_connection_that_is_still_being_made() -> None:
    job = connected("tcp", DDL_CONNECTIONS="2")
    assert ranks.run(2, leave_while_a_connection_is_made, initialise=False, **job) == [[2.0, 2.0]] * 2


# --- hostile connections --------------------------------------------------------------------------------------------

#: What a connection that knows the secret might claim to be, and must not be believed.
HELLOS: Dict[str, Dict[str, Any]] = {
    "negative": {"stream": -1},
    "beyond all": {"stream": 10**6},
    "beyond 32 bits": {"stream": 2**40},
    "beyond 64 bits": {"stream": 10**30},
    "one too many": {"stream": 16 * _core.STREAMS},
    "text": {"stream": "4"},
    "none": {"stream": None},
    "a fraction": {"stream": 1.5},
    "twice": {"stream": 0},
    "no such rank": {"rank": 7},
    "negative rank": {"rank": -1},
    "the accepting rank itself": {"rank": 0},
    "rank beyond 64 bits": {"rank": 10**30},
    "text for the communicator": {"communicator": "0"},
}


def strangers() -> Dict[str, Any]:
    """Rank 1 plays the hostile one, besides its part in the job; returns what was not closed, and what was lost."""
    rank = ddl.rank()
    ddl.barrier()
    allreduced(3 * MIB, 0, shared=False)
    until_all_are_connected()
    group, before = ddl.world()._group, descriptors()
    believed = []
    for name, claims in HELLOS.items():
        if rank == 1:
            hello = {"communicator": group.number, "rank": 1, "stream": _core.stream_of(1, 0), **claims}
            job, deadline = group.job, time.monotonic() + 60
            sock = connect_data([job.address(0, 0)], job.secret, hello, deadline, encrypt=job.settings.encrypt)
            with sock:
                if not hang_up_within(sock, 30):
                    believed.append(name)
        allreduced(100_000, len(name), shared=False)
        allreduced(3, len(name), shared=False)
    deadline = time.monotonic() + 30
    while descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    lost = descriptors() - before  # a connection may have ended since: of the 14 hellos none may stay
    return {"believed": believed, "lost": max(0, lost)}


@pytest.mark.few(1)
@pytest.mark.parametrize("connections", ["1", "2"])
def test_a_hello_that_lies_is_refused_and_the_job_goes_on(connections: str) -> None:
    job = connected("tcp", DDL_CONNECTIONS=connections, DDL_LOG="error")
    for rank, answer in enumerate(ranks.run(2, strangers, **job)):
        assert answer == {"believed": [], "lost": 0}, f"rank {rank}: {answer}"
