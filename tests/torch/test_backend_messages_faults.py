"""Messages on the backend "ddl" that never come: nobody sends them, or their sender dies."""

from __future__ import annotations

import datetime
import os
import signal
import time

import pytest
import ranks
from process_groups import begin

torch = pytest.importorskip("torch")


def never_sent(path):
    dist, r, n = begin(path)
    import ddl

    for tag in (0, 3):  # connects
        if r == 0:
            dist.recv(torch.empty(1), 1, tag=tag)
        else:
            dist.send(torch.empty(1), 0, tag=tag)
    ranks.meet()
    if r == 0:
        dist.group.WORLD.set_timeout(datetime.timedelta(seconds=1))
        with pytest.raises(ddl.CollectiveTimeout, match=r"recv\(1 x float32 from rank 1, tag 3\).* the same tag"):
            dist.recv(torch.empty(1), 1, tag=3)
    else:
        dist.isend(torch.empty(1), 0, tag=4)
        with pytest.raises(ddl.CollectiveTimeout):
            for _ in range(1000):
                dist.send(torch.empty(1), 0)
                time.sleep(0.1)


@pytest.mark.faults
def test_a_message_that_nobody_sends(tmp_path) -> None:
    ranks.run(2, never_sent, str(tmp_path / "store"), initialise=False)


def never_sent_by_anybody(path):
    dist, r, _ = begin(path)
    import ddl

    if r == 0:
        dist.group.WORLD.set_timeout(datetime.timedelta(seconds=1))
        text = r"recv \(1 x float32, from any rank\): no rank has sent this one a message within 1000 ms"
        with pytest.raises(ddl.CollectiveTimeout, match=text):
            dist.recv(torch.empty(1))
    else:
        with pytest.raises(ddl.CollectiveTimeout):
            dist.barrier()


@pytest.mark.faults
def test_a_message_that_no_rank_sends(tmp_path) -> None:
    ranks.run(3, never_sent_by_anybody, str(tmp_path / "store"), initialise=False)


def all_have_left(path, tag):
    """Nobody is left who could send: whoever receives from any source is told at once."""
    dist, r, _ = begin(path)
    import ddl

    dist.barrier()
    if r != 0:
        if r == 1:
            dist.send(torch.ones(1), 0, tag=tag)
        dist.destroy_process_group()
        ranks.meet()
        return
    ranks.meet()
    dist.group.WORLD.set_timeout(datetime.timedelta(hours=1))
    assert dist.recv(torch.empty(1), tag=tag) == 1
    with pytest.raises(ddl.PeerLost, match=r"lost rank \d.*: it has shut down"):
        dist.recv(torch.empty(1), tag=tag)


@pytest.mark.faults
@pytest.mark.parametrize("shm", ["1", "0"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("tag", [0, 3])
def test_all_that_could_send_have_left(tag: int, size: int, shm: str, tmp_path) -> None:
    ranks.run(size, all_have_left, str(tmp_path / "store"), tag, initialise=False, env={"DDL_SHM": shm})


def dying(path, first):
    dist, r, n = begin(path)
    import ddl

    dist.barrier()
    ranks.meet()
    if r == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for arguments in first, {"src": 1, "tag": 3}, {}, {"tag": 3}:
        with pytest.raises(ddl.PeerLost, match="lost rank 1"):
            dist.recv(torch.empty(1), **arguments)


@pytest.mark.faults
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("first", [{}, {"tag": 3}, {"src": 1, "tag": 3}], ids=["any", "any tagged", "tagged"])
def test_a_rank_dies_while_another_waits_for_its_message(first, size: int, tmp_path) -> None:
    ranks.run(size, dying, str(tmp_path / "store"), first, initialise=False, may_die=[1])
