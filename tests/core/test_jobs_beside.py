"""A process in several jobs: what adapters do by ``begin_job``, ``use_job`` and ``end_job`` of ``ddl/jobs.py``."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import ranks

pytestmark = pytest.mark.processes


def begin(path, rank, size):
    """Join a job that nobody launched; return its world, and the server of its store, on rank 0."""
    from ddl import jobs
    from ddl.bootstrap.environ import Settings
    from ddl.bootstrap.meeting import Rendezvous

    file, settings = Path(path), Settings.from_environ(os.environ)

    def share(text):
        if text is not None:
            file.with_suffix(".draft").write_text(text)
            file.with_suffix(".draft").rename(file)
        while not file.exists():
            time.sleep(0.005)
        return file.read_text()

    identity, _, server = Rendezvous(rank, size, share, ["here"] * size).admission(settings)
    assert (server is None) == (rank > 0)
    return jobs.begin_job(identity, settings, server), server


def total(communicator):
    import ddl

    return communicator.allreduce(np.array([communicator.rank + 1]), op=ddl.Sum).item()


def beside(folder):
    import ddl
    from ddl import jobs

    world, rank = ddl.world(), ddl.rank()
    first, server = begin(f"{folder}/first", 2 - rank, 3)
    assert ddl.world() is world and first.rank == 2 - rank and (total(first), total(world)) == (6, 6)
    if rank < 2:
        second, other = begin(f"{folder}/second", rank, 2)
        for _ in range(3):
            assert (total(second), total(world)) == (3, 6)
        jobs.use_job(second)
        assert ddl.world() is second and ddl.size() == 2 and total(world) == 6
        kept = jobs.end_job(second)
        assert kept is jobs.end_job(second) and not ddl.is_initialized()
        with pytest.raises(ddl.InvalidState, match="was shut down"):
            total(second)
        jobs.use_job(world)
        if other is not None:
            other.close_when_alone(100)
    else:
        for _ in range(4):
            total(world)
    assert total(first) == 6
    if server is None:
        return
    jobs.end_job(first)
    server.close_when_alone(100)  # the others have not left: they do so when they end, one after the other
    assert not server._verdict.present, "it was closed because its patience was at an end"


def test_several_jobs_in_a_process(tmp_path) -> None:
    ranks.run(3, beside, str(tmp_path))


def a_child(folder, victim):
    """A child holds nothing of its parent's jobs open: the end of the parent is seen."""
    import ddl

    world, _ = begin(f"{folder}/job", ddl.rank(), 2)
    assert total(world) == 3
    if ddl.rank() == victim:
        child = os.fork()
        if child == 0:
            ranks.answers.close()
            time.sleep(200)  # longer than the other's deadline
            os._exit(0)
        Path(folder, "child").write_text(str(child))
        os._exit(9)
    with pytest.raises(ddl.PeerLost):
        total(world)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_child_of_a_process_holds_nothing_open(victim, tmp_path) -> None:
    try:
        ranks.run(2, a_child, str(tmp_path), victim, may_die=[victim])
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)  # it was alive all the time
