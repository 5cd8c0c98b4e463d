"""Communicators that are made again and again, closed or only dropped: nothing of them stays."""

from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np
import pytest
import ranks
from core.faults import descriptors, threads, until_all_are_connected
from core.jobs import connected

import ddl
from ddl import _core
from ddl.bootstrap import agent as agent_module
from ddl.bootstrap.peer_handshake import connect_data

pytestmark = pytest.mark.processes


class Held(NamedTuple):
    """What this process holds."""

    descriptors: int
    threads: int
    mappings: int
    arena: int
    children: int
    early: int


def held() -> Held:
    """What is held now, with everything that was dropped closed: another communicator has been made for that."""
    ddl.split(0).close()
    ddl.split(0).close()  # by now all ranks know what all have closed
    ddl.barrier()
    group = ddl.world()._group
    mappings = Path("/proc/self/maps").read_text().count("\n")
    early = sum(map(len, group.job.agent._arrived.data.values()))
    return Held(descriptors(), threads(), mappings, _core.arena_used(), len(group._children), early)


def settled(before: Held) -> Held:
    """What is held when threads and connections that are on their way out have gone on all ranks, or after a while.

    To look is collective, so ranks look equally often.
    """
    for _ in range(400):
        now = held()
        leaving = np.array([any(now[i] > before[i] for i in (0, 1))], np.int32)
        if not ddl.allreduce(leaving, op=ddl.Max)[0]:
            break
        time.sleep(0.05)
    return now


def made_and_dropped(count: int) -> List[Tuple[int, ...]]:
    """What is held (see ``Held``) after the first 20 communicators, and after all of them."""
    x, large = np.ones(3), np.ones(70_000)
    ddl.allreduce(x)
    until_all_are_connected()  # of the world's, which stay
    before = held()
    for number in range(count):
        part = ddl.world().split(0) if number % 2 else ddl.world().subset([0, 1])
        if number % 20 == 0:
            part.allreduce_async(large).wait()  # with threads
        elif number % 2 == 0:
            part.allreduce_(x)
        if number % 3 == 0:
            part.close()
        del part
        if number == 20:
            before = settled(before)
    return [tuple(before), tuple(settled(before))]


@pytest.mark.few(1)
@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_communicators_that_are_dropped_leave_nothing(transport: str, count: int) -> None:
    for answer in ranks.run(2, made_and_dropped, count, **connected(transport)):
        before, after = (Held(*values) for values in answer)
        assert after.descriptors <= before.descriptors and after.threads <= before.threads, (before, after)
        assert after.children <= 2 and after.early == 0, after
        # Large staging may be made again on another page; two hundred boards would be megabytes.
        assert after.arena <= before.arena + 64_000 and after.mappings <= before.mappings + 12, (before, after)


def prepared_on_a_dropped_one() -> List[Any]:
    x = np.full(5, ddl.rank() + 1.0)
    step = ddl.split(0).prepare_allreduce(x, op=ddl.Sum)
    group = weakref.ref(ddl.world()._group._children[-1])
    for _ in range(3):
        ddl.split(0).close()
    step()
    alive = group() is not None
    del step
    gc.collect()
    held()
    return [x.tolist(), alive, group() is None]


def test_what_is_prepared_keeps_its_communicator() -> None:
    assert ranks.run(2, prepared_on_a_dropped_one) == [[[3.0] * 5, True, True]] * 2


def under_way_on_a_dropped_one() -> List[float]:
    """Rank 0 drops the communicator while rank 1 has not made the call yet."""
    part = ddl.split(0)
    work = part.allreduce_async(np.ones(4), op=ddl.Sum) if ddl.rank() == 0 else None
    if work is not None:
        del part
        gc.collect()
    for _ in range(3):
        ddl.split(0).close()
    if work is None:
        work = part.allreduce_async(np.ones(4), op=ddl.Sum)
    return work.wait().tolist()


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_what_is_under_way_keeps_its_communicator(transport: str) -> None:
    assert ranks.run(2, under_way_on_a_dropped_one, **connected(transport)) == [[2.0] * 4] * 2


def child_of_a_dropped_one() -> List[Any]:
    half = ddl.split(0)
    child, group = half.split(0), weakref.ref(half._group)
    del half
    gc.collect()
    for _ in range(3):
        ddl.split(0).close()
    value = float(child.allreduce(1.0, op=ddl.Sum))
    alive = group() is not None
    del child
    held()
    return [value, alive, held().children <= 2 and group() is None]


def test_a_child_keeps_the_communicator_that_it_came_of() -> None:
    assert ranks.run(2, child_of_a_dropped_one) == [[2.0, True, True]] * 2


def called_too_late() -> Tuple[int, int, int]:
    """Rank 1 connects to rank 0 for communicators that rank 0 has closed; rank 0's descriptors before and after."""
    numbers = []
    for _ in range(20):
        part = ddl.split(0)
        numbers.append(part._group.number)
        part.close()
    ddl.barrier()
    until_all_are_connected()
    job, before, came = ddl.world()._group.job, descriptors(), 0
    ddl.barrier()
    if ddl.rank() == 1:
        for number in numbers:
            hello = {"communicator": number, "rank": 1, "stream": 0}
            deadline = time.monotonic() + 60
            with connect_data([job.address(0, 0)], job.secret, hello, deadline, encrypt=job.settings.encrypt) as sock:
                sock.settimeout(60)
                came += sock.recv(1) == b""  # rank 0 has hung up
    until_all_are_connected()
    return before, descriptors(), came


def test_connections_for_a_closed_communicator_are_closed() -> None:
    (before, after, _), (_, _, closed) = ranks.run(2, called_too_late, **connected("tcp"))
    assert closed == 20 and after <= before


def remembered() -> Dict[str, int]:
    agent_module._REMEMBERED = 5
    for _ in range(12):
        ddl.split(0).close()
    return dict(ddl.world()._group.job.agent._submitted)


def test_a_goodbye_names_the_last_communicators_only() -> None:
    for submitted in ranks.run(2, remembered):
        assert len(submitted) == 5 and max(map(int, submitted)) == 12
