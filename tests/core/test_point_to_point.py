"""send and recv: order, many outstanding, messages beyond every buffer, and no need for a matching order of posting."""

from __future__ import annotations

import itertools
import time
from typing import List, Sequence, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import TRANSPORTS, connected
from core.values import Bfloat16, check_equal, contribution, for_ddl, numbers, placed, storage

import ddl

pytestmark = pytest.mark.processes

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint16", "int64", "bool"]


def in_order(sizes: List[int]) -> int:
    """0 -> 1, one after the other, blocking; shared and private memory in turn."""
    for number, count in enumerate(sizes):
        want = numbers(number, count)
        if ddl.rank() == 0:
            ddl.send(placed(want, number % 2 == 0), 1)
        else:
            x = placed(np.zeros(count, np.int32), number % 3 == 0)
            assert ddl.recv(x, 0) is x
            check_equal(x, want, f"message {number} of {count}")
    return len(sizes)


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_messages_arrive_whole_and_in_order(transport: str) -> None:
    sizes = [0, 1, 2, 0, 3, 255, 4096, 65_537, 262_144, 262_145, 1_500_007, 0, 5]
    assert ranks.run(2, in_order, sizes, **connected(transport)) == [13] * 2


def every_type() -> int:
    for dtype in DTYPES:
        data = contribution(dtype, ddl.Sum, 0, 1, 1000)
        if ddl.rank() == 0:
            ddl.send(for_ddl(dtype, data), 1)
        else:
            target = for_ddl(dtype, np.zeros(1000, storage(dtype)))
            assert ddl.recv(target, 0) is target
            check_equal(target.data if isinstance(target, Bfloat16) else target, data, dtype)
    return len(DTYPES)


def test_every_type() -> None:
    assert ranks.run(2, every_type) == [len(DTYPES)] * 2


def ring_of_sends(counts: Sequence[int]) -> int:
    """Everybody sends first and receives later: needs buffering or sends that do not block the progress."""
    rank, size = ddl.rank(), ddl.size()
    for turn, count in itertools.product(range(4), counts):
        out = numbers(rank, count, turn)
        work = ddl.world().send_async(out, (rank + 1) % size)
        x = ddl.recv(np.zeros(count, np.int32), (rank - 1) % size)
        work.wait()
        check_equal(x, numbers((rank - 1) % size, count, turn), f"turn {turn}")
    return turn + 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ring(transport: str) -> None:
    assert ranks.run(4, ring_of_sends, [1, 700_001], **connected(transport)) == [4] * 4


def many_outstanding(messages: int, count: int) -> int:
    """All to all others at once, waited for in the reverse order, with collectives in between."""
    rank, size = ddl.rank(), ddl.size()
    others = [r for r in range(size) if r != rank]
    sent = {(to, m): numbers(rank * 4 + to, count, m) for to in others for m in range(messages)}
    works = [ddl.send_async(data, to) for (to, m), data in sent.items()]
    total = ddl.allreduce(np.full(5000, rank, np.int32), op=ddl.Sum)
    assert (total == size * (size - 1) // 2).all()
    got = {(of, m): np.zeros(count, np.int32) for of in others for m in range(messages)}
    works += [ddl.recv_async(x, of) for (of, m), x in got.items()]
    ddl.barrier()
    for work in reversed(works):
        work.wait()
    for (of, m), x in got.items():
        check_equal(x, numbers(of * 4 + rank, count, m), f"message {m} from {of}")
    assert all(work.done() for work in works)
    return len(works)


@pytest.mark.few(7)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("messages", "count"), [(100, 3), (8, 50_001)])
def test_many_outstanding(transport: str, messages: int, count: int) -> None:
    assert ranks.run(4, many_outstanding, messages, count, **connected(transport)) == [messages * 6] * 4


def receive_before_send() -> bool:
    """A receive that is posted long before its send blocks neither collectives nor other messages."""
    comm, rank = ddl.world(), ddl.rank()
    late, early = np.zeros(9), np.zeros(9)
    if rank == 0:
        work = comm.recv_async(late, 1)
        other = comm.recv_async(early, 2)
        check_equal(other.wait(), np.full(9, 2.0), "from 2")
        assert not work.done()
        for _ in range(20):
            ddl.allreduce(np.ones(4000))
        assert not work.done()
        ddl.barrier()
        check_equal(work.wait(), np.full(9, 1.0), "from 1")
        return True
    if rank == 2:
        comm.send(np.full(9, 2.0), 0)
    for _ in range(20):
        ddl.allreduce(np.ones(4000))
    ddl.barrier()
    if rank == 1:
        comm.send(np.full(9, 1.0), 0)
    return True


def slow_chain() -> float:
    """2 -> 1 -> 0, late: both receivers wait so long that they ask the store about it; 3 has left by then."""
    rank = ddl.rank()
    ddl.barrier()
    x = np.full(3, 5.0)
    if rank == 2:
        time.sleep(2)
    if rank in (0, 1):
        ddl.recv(x, rank + 1)
    if rank in (1, 2):
        ddl.send(x + rank, rank - 1)
    return float(x[0])


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_slow_sender_is_waited_for(transport: str) -> None:
    assert ranks.run(4, slow_chain, **connected(transport)) == [8.0, 7.0, 5.0, 5.0]


def never_sent() -> Tuple[str, str]:
    """Rank 1 does not send, and is there until rank 0 has given up."""
    answer = "", ""
    if ddl.rank() == 0:
        ddl.world().set_timeout(0.5)
        with pytest.raises(ddl.CommunicatorError) as caught:
            ddl.recv(np.ones(3), 1)
        answer = type(caught.value).__name__, str(caught.value)
    ranks.meet()
    return answer


@pytest.mark.few(1)
@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_what_is_never_sent_names_the_sender(transport: str) -> None:
    (kind, text), _ = ranks.run(2, never_sent, **connected(transport))
    assert kind == "CollectiveTimeout" and "recv" in text and "rank 1 (host" in text, (kind, text)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_waiting_receive_blocks_nothing(transport: str) -> None:
    assert ranks.run(3, receive_before_send, **connected(transport)) == [True] * 3
