"""Point to point on the backend "ddl": tags, receives from any source, their order, and what they raise."""

from __future__ import annotations

import datetime
import os
import threading
import time
from pathlib import Path

import pytest
import ranks
from process_groups import begin, launch

torch = pytest.importorskip("torch")


def tagged(path):
    dist, r, n = begin(path)
    if r == 0:
        for tag in (5, 0, 9, 5):
            dist.isend(torch.full((3,), float(tag)), 1, tag=tag)
        dist.isend(torch.arange(200_000, dtype=torch.int64), 1, tag=7)
        dist.isend(torch.full((2, 2), 1 + 2j), 1, tag=3)
        dist.isend(torch.ones(2), 1, tag=8)
        dist.isend(torch.tensor([6.0]), 1, tag=6)
    elif r == 1:
        x, long = torch.empty(3), torch.empty(200_000, dtype=torch.int64)
        dist.recv(torch.empty(1), 0, tag=6)  # the last first: those before are kept
        leaf = torch.zeros(2, requires_grad=True)
        dist.recv(leaf, 0, tag=8)
        assert leaf.is_leaf and leaf.tolist() == [1, 1]
        dist.recv(long, 0, tag=7)
        assert torch.equal(long, torch.arange(200_000))
        for tag in (9, 5, 0):
            assert dist.recv(x, 0, tag=tag) == 0 and x.tolist() == [tag] * 3
        dist.recv(x, 0, tag=5)
        assert x.tolist() == [5] * 3
        numbers = torch.empty(2, 2, dtype=torch.complex64)
        dist.recv(numbers, 0, tag=3)
        assert numbers[0, 1] == 1 + 2j
    dist.barrier()
    # A receive that waits before the message is sent, and both directions at once.
    peer, turned = 1 - r, torch.empty(2, 4).t()
    waiting = dist.irecv(turned, peer, tag=1)
    dist.barrier()
    assert not waiting.is_completed()
    dist.barrier()
    sending = dist.isend(torch.full((4, 2), float(r)), peer, tag=1)
    assert waiting.get_future().wait()[0].tolist() == [[peer] * 2] * 4
    sending.wait()  # a message is lost that a rank leaves before it has gone
    dist.destroy_process_group()


def test_tags(tmp_path) -> None:
    ranks.run(2, tagged, str(tmp_path / "store"), initialise=False)


def anybody(path):
    dist, r, n = begin(path)
    for tag in (0, 4):
        if r == 0:
            received = []
            for _ in range(2 * (n - 1)):
                x = torch.empty(2)
                source = dist.recv(x, tag=tag)
                assert x[0] == source
                received.append((source, int(x[1])))
            assert [number for rank, number in received if rank == n - 1] == [0, 1]  # a sender's own order
            assert sorted(received) == [(rank, number) for rank in range(1, n) for number in range(2)]
        else:
            for number in range(2):
                dist.send(torch.tensor([float(r), float(number)]), 0, tag=tag)
    dist.barrier()
    # Begun before anything is sent; the named receive after it must not get its message.
    if r == 0:
        buffer, other = torch.empty(1), torch.empty(3)
        first, second = dist.irecv(buffer), dist.irecv(other, 1)
        dist.barrier()
        second.wait()
        assert first.source_rank() == 1 and buffer.item() == 8 and other.tolist() == [9] * 3
        assert dist.recv(buffer, 1) == 1 and buffer.item() == 10  # and by name again
    else:
        dist.barrier()
        if r == 1:
            for x in (torch.tensor([8.0]), torch.full((3,), 9.0), torch.tensor([10.0])):
                dist.send(x, 0)
    # All from all, each before it sends; also in another group, whose ranks are others.
    for group in (None, dist.new_group(list(range(n))[::-1])):
        x = torch.empty(1)
        waiting = dist.irecv(x, group=group)
        dist.send(torch.tensor([float(r)]), (r + 1) % n, group=group)
        waiting.wait()
        assert x.item() == (r - 1) % n
        assert dist.get_global_rank(group or dist.group.WORLD, waiting.source_rank()) == (r - 1) % n
        dist.barrier(group=group)
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 4])
def test_any_source(size: int, tmp_path) -> None:
    ranks.run(size, anybody, str(tmp_path / "store"), initialise=False)


def sent_and_left(path, leaver):
    dist, r, _ = begin(path)
    x = torch.empty(2)
    if r == leaver:
        for number in range(2):
            dist.send(torch.tensor([float(r), float(number)]), 1 - r)
        dist.destroy_process_group()
        ranks.meet()
    else:
        ranks.meet()  # it has left, and cannot be asked any more
        for number in range(2):
            assert dist.recv(x) == leaver and x.tolist() == [leaver, number]
        dist.destroy_process_group()


@pytest.mark.few(1)
@pytest.mark.parametrize("leaver", [0, 1])
def test_who_receives_from_any_source_need_not_hurry(leaver: int, tmp_path) -> None:
    ranks.run(2, sent_and_left, str(tmp_path / "store"), leaver, initialise=False)


def come_before_the_end(path):
    """A receive with a tag has begun; its message comes, the group breaks, and then somebody looks."""
    dist, r, _ = begin(path)
    if r == 0:
        ranks.meet()
        dist.send(torch.ones(2), 1, tag=4)
        ranks.meet()
        return
    x, group = torch.empty(2), dist.group.WORLD
    work = dist.irecv(x, 0, tag=4)
    assert not work.is_completed()  # that begins to receive
    ranks.meet()
    header, end = group._messages._headers[0][1], time.monotonic() + 60
    while not header.done():
        assert time.monotonic() < end
        time.sleep(0.001)
    group.abort()
    work.wait()
    assert x.tolist() == [1, 1]
    ranks.meet()


def test_a_message_that_came_before_the_group_broke(tmp_path) -> None:
    ranks.run(2, come_before_the_end, str(tmp_path / "store"), initialise=False)


def others_have_left(path):
    """A rank that has left is no reason to give up a receive from any source."""
    dist, r, _ = begin(path)
    dist.barrier()
    if r == 2:
        dist.send(torch.ones(1), 0)
        dist.destroy_process_group()
    ranks.meet()
    if r == 1:
        time.sleep(0.5)  # rank 0 has begun to wait, mostly, and has seen that rank 2 is gone
        for tag in (0, 6):
            dist.send(torch.full((1000,), 2.0), 0, tag=tag)
    elif r == 0:
        x, long = torch.empty(1), torch.empty(1000)
        assert dist.recv(x) == 2 and x.item() == 1
        for tag in (0, 6):
            assert dist.recv(long, tag=tag) == 1 and long.tolist() == [2] * 1000
    if r < 2:
        dist.destroy_process_group()


@pytest.mark.parametrize("shm", ["1", "0"])
def test_a_rank_that_has_left_is_not_waited_for(shm: str, tmp_path) -> None:
    ranks.run(3, others_have_left, str(tmp_path / "store"), initialise=False, env={"DDL_SHM": shm})


def by_several_threads(path):
    dist, r, _ = begin(path)
    rounds, lengths = 30, {1: 1, 2: 60, 3: 5000}  # short ones go with their headers
    got = {tag: [] for tag in lengths}

    def receive(tag, source):
        for number in range(rounds):
            x = torch.empty(lengths[tag])
            assert dist.recv(x, source, tag=tag) == 0
            got[tag].append(bool((x == 100 * tag + number).all()))

    if r == 0:
        for number in range(rounds):
            for tag, length in lengths.items():
                dist.send(torch.full((length,), 100.0 * tag + number), 1, tag=tag)
    else:
        threads = [threading.Thread(target=receive, args=(tag, None if tag == 2 else 0)) for tag in lengths]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {tag: [True] * rounds for tag in lengths}
    dist.barrier()
    dist.destroy_process_group()


def test_threads_that_wait_for_tags_of_their_own(tmp_path) -> None:
    ranks.run(2, by_several_threads, str(tmp_path / "store"), initialise=False)


def by_name_and_from_any(path):
    """A receive by name waits first, then one from any rank: neither takes the other's message, however long."""
    dist, r, _ = begin(path)
    dist.barrier()
    if r == 0:
        named, other = torch.empty(50_000), torch.empty(70_000)
        first = dist.irecv(named, 1, tag=5)
        assert not first.is_completed()  # it looks for its header now
        second = dist.irecv(other, tag=6)
        assert not second.is_completed()
        ranks.meet()
        for _ in range(100):  # what is wrong happens when rank 1's message has come, and that of rank 2 has not
            first.is_completed()
            time.sleep(0.005)
        ranks.meet()
        assert second.wait() and second.source_rank() == 2 and torch.equal(other, torch.full((70_000,), 6.0))
        assert first.wait() and torch.equal(named, torch.full((50_000,), 5.0))
    else:
        ranks.meet()
        if r == 1:
            sending = dist.isend(torch.full((50_000,), 5.0), 0, tag=5)
        ranks.meet()
        if r == 2:
            sending = dist.isend(torch.full((70_000,), 6.0), 0, tag=6)
        sending.wait()
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("shm", ["1", "0"])
def test_a_receive_by_name_and_one_from_any_rank(shm: str, tmp_path) -> None:
    ranks.run(3, by_name_and_from_any, str(tmp_path / "store"), initialise=False, env={"DDL_SHM": shm})


def refused(path):
    dist, r, n = begin(path)
    import ddl

    x = torch.empty(2)
    if r == 0:
        dist.send(torch.ones(3), 1, tag=2)
        dist.send(torch.ones(2), 1, tag=2)
        dist.barrier()
        dist.send(torch.full((2,), 5.0), 1, tag=2)
        dist.send(torch.full((2,), 5.0), 1)
    else:
        with pytest.raises(ddl.InvalidArgument, match=r"recv\(2 x float32 .* got 3 x float32 of rank 0, tag 2"):
            dist.recv(x, 0, tag=2)
        assert dist.recv(x, 0, tag=2) == 0 and x[0] == 1  # nothing is broken
        dist.barrier()
        for arguments in ({"src": 0, "tag": 2}, {}):
            with pytest.raises(ddl.InvalidArgument, match="sparse"):
                dist.recv(torch.zeros(2).to_sparse(), **arguments)
            assert dist.recv(x, **arguments) == 0 and x.tolist() == [5, 5]  # it has not taken the message
        with pytest.raises(ddl.WaitTimeout, match=r"from any source, tag 2\): no such message"):
            dist.irecv(x, tag=2).wait(datetime.timedelta(seconds=0.3))
    with pytest.raises(ddl.InvalidArgument, match="cannot send to itself"):
        dist.irecv(x, r, tag=2)
    alone = [dist.new_group([rank]) for rank in range(n)][r]
    with pytest.raises(ddl.InvalidArgument, match="no other rank"):
        dist.recv(x, group=alone)
    dist.barrier()
    dist.destroy_process_group()


def test_what_is_refused(tmp_path) -> None:
    ranks.run(2, refused, str(tmp_path / "store"), initialise=False)


def without_store(path):
    import torch.distributed as dist

    import ddl
    import ddl_torch

    rank, port = int(os.environ["DDL_RANK"]), Path(path)
    store = dist.TCPStore("127.0.0.1", 0 if rank == 0 else read(port), 2, rank == 0, wait_for_workers=False)
    if rank == 0:
        port.write_text(f"{store.port}\n")
    dist.init_process_group("ddl", store=store, rank=rank, world_size=2)
    assert ddl_torch.__all__
    dist.barrier()
    ranks.meet()
    if rank == 0:
        os._exit(0)
    with pytest.raises(ddl.PeerLost):
        dist.barrier()
    for call in (
        lambda: dist.send(torch.ones(1), 0),
        lambda: dist.send(torch.ones(1), 0, tag=1),
        lambda: dist.recv(torch.ones(1), 0, tag=1),
        lambda: dist.monitored_barrier(),
    ):
        with pytest.raises(ddl.PeerLost, match="lost rank 0"):  # and not for as long as torch asks for its store
            call()


def read(file):
    while not (file.exists() and file.read_text().endswith("\n")):
        time.sleep(0.01)
    return int(file.read_text())


@pytest.mark.faults
def test_torchs_store_is_lost(tmp_path) -> None:
    ranks.run(2, without_store, str(tmp_path / "port"), initialise=False, may_die=[0])


PROGRAM = """
import sys, time
import torch
import torch.distributed as dist
import ddl_torch

dist.init_process_group("ddl")
x = torch.ones(3)
if dist.get_rank() == 0:
    dist.recv(x, 1)
else:
    dist.send(x, 0)
    time.sleep(1)  # rank 0, which has torch's store, leaves first
if len(sys.argv) > 1:
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("line", [[], ["destroy"]], ids=["leave", "destroy"])
def test_the_end_is_quiet(line, tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launch("ddlrun", [str(program), *line], tmp_path, quiet=True)
