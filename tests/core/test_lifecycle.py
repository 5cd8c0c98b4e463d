"""init, shutdown, again and again; jobs of one; what an import does; and what a fork does not."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.faults import descriptors, strike_after, struck_at, threads
from core.jobs import TRANSPORTS, connected

import ddl

ROOT = Path(__file__).resolve().parents[2]


def again_and_again(rounds: int) -> List[Tuple[int, int, int]]:
    """(descriptors, threads, bytes of the arena in use) after some of the rounds."""
    from ddl import _core, jobs

    rank, seen = ddl.rank(), []
    x = ddl.empty(30_000)
    for number in range(rounds):
        ddl.init()
        assert ddl.is_initialized() and ddl.rank() == rank
        x[:] = rank + number
        ddl.allreduce_(x)
        assert x[0] == x[-1] == number + (ddl.size() - 1) / 2
        assert ddl.allgather(np.full(rank, rank)).size == ddl.size() * (ddl.size() - 1) // 2
        child = ddl.split(rank % 2)
        assert child is not None and float(child.allreduce(1.0, op=ddl.Sum)) == child.size
        del child
        ddl.shutdown()
        ddl.shutdown()
        while jobs.state.retired:  # memory that others may write to until they have left, too
            time.sleep(0.001)
            jobs._let_go_of_retired()
        gc.collect()
        if number >= 5:
            seen.append((descriptors(), threads(), _core.arena_used()))
    return seen


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_thirty_jobs_in_one_process(transport: str) -> None:
    for seen in ranks.run(4, again_and_again, 30, **connected(transport)):
        assert len(seen) == 25
        # A connection that came while its rank left may be closed a round later, and its memory be freed then; nothing
        # may grow.
        for what in zip(*seen):
            assert min(what[-10:]) <= min(what[:10]), what
        fds, tasks, _ = zip(*seen)
        late = 12 if transport == "rails" else 4  # three rails, three times as many connections
        assert max(fds) <= min(fds) + late and max(tasks) <= min(tasks) + late, (fds, tasks)


def init_twice() -> Tuple[bool, int, bool]:
    world = ddl.world()
    ddl.init()
    same = ddl.world() is world
    ddl.shutdown()
    return same, 1, ddl.is_initialized()


@pytest.mark.processes
def test_init_twice_is_once() -> None:
    assert ranks.run(2, init_twice) == [(True, 1, False)] * 2


def identity() -> Tuple[int, ...]:
    return (ddl.rank(), ddl.size(), ddl.local_rank(), ddl.local_size(), ddl.cross_rank(), ddl.cross_size())


@pytest.mark.processes
def test_identity() -> None:
    assert ranks.run(3, identity) == [(rank, 3, rank, 3, 0, 1) for rank in range(3)]
    places = {0: ("0", "2", "0", "2"), 1: ("1", "2", "0", "1"), 2: ("0", "1", "1", "2")}
    names = ("DDL_LOCAL_RANK", "DDL_LOCAL_SIZE", "DDL_CROSS_RANK", "DDL_CROSS_SIZE")
    got = ranks.run(3, identity, env_of=lambda rank: dict(zip(names, places[rank])))
    assert got == [(rank, 3, *map(int, places[rank])) for rank in range(3)]


def python(code: str) -> subprocess.CompletedProcess:
    """Run ``code`` in a fresh interpreter without a launcher's variables."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)


def succeed(code: str) -> str:
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_import_has_no_side_effect() -> None:
    succeed(
        "import os, sys, threading\n"
        "def look(): return [sorted(os.listdir(f'/proc/self/{what}')) for what in ('fd', 'task')], dict(os.environ)\n"
        "before = look()\n"
        "import ddl\n"
        "assert look() == before, (look(), before)\n"
        "loaded = {'ddl._core', 'numpy', 'torch', 'socket'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "assert not ddl.is_initialized()"
    )


def test_every_public_name_is_there() -> None:
    out = succeed(
        "import ddl\n"
        "assert len(set(ddl.__all__)) == len(ddl.__all__)\n"
        "for name in ddl.__all__: assert getattr(ddl, name).__doc__ or name == '__version__', name\n"
        "assert set(ddl.__all__) <= set(dir(ddl))\n"
        "names = {}; exec('from ddl import *', names)\n"
        "assert set(ddl.__all__) <= set(names)\n"
        "try: ddl.nonsense\n"
        "except AttributeError as error: print(error)"
    )
    assert "nonsense" in out


def test_a_job_of_one_needs_no_launcher() -> None:
    out = succeed(
        "import os, threading, ddl, numpy as np\n"
        "ddl.init()\n"
        "assert (ddl.rank(), ddl.size(), ddl.local_rank(), ddl.cross_size()) == (0, 1, 0, 1)\n"
        "x = np.arange(5.)\n"
        "assert (ddl.allreduce(x) == x).all() and (ddl.alltoall(x) == x).all() and (ddl.scatter(x) == x).all()\n"
        "assert ddl.broadcast_object({'a': 1}) == {'a': 1} and ddl.allgather_object(2) == [2]\n"
        "assert (ddl.allreduce_async_(x, name='x').wait() is x) and ddl.split(3).size == 1\n"
        "ddl.barrier()\n"
        "assert threading.active_count() == 1\n"
        "print('fine')"  # no shutdown: it runs by itself
    )
    assert out == "fine\n"


def test_exit_without_shutdown_in_the_middle() -> None:
    """Works that nobody waited for do not keep the interpreter from ending, nor make it crash."""
    out = succeed(
        "import ddl, numpy as np\n"
        "ddl.init()\n"
        "works = [ddl.allreduce_async(np.ones(100_000)) for _ in range(20)]\n"
        "kept = ddl.empty(1000); world = ddl.world(); print('end')"
    )
    assert out == "end\n"


def leave_uncleanly() -> bool:
    """The interpreter ends while this rank still has operations under way and arrays in shared memory."""
    global kept
    kept = [ddl.empty(100_000), ddl.world(), ddl.recv_async(np.ones(3), 1 - ddl.rank())]
    return True


@pytest.mark.processes
def test_ranks_that_end_with_work_under_way() -> None:
    assert ranks.run(2, leave_uncleanly) == [True, True]


# --- fork ---


def fork_and_exit() -> List[Any]:
    """A data loader's worker: forked after init, looks at itself, ends."""
    answers: List[Any] = []
    x = ddl.empty(1000)
    x[:] = ddl.rank()
    work = ddl.allreduce_async(np.full(300_000, float(ddl.rank())))
    for how in ("_exit", "exit"):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                state = f"{ddl.is_initialized()} {x[0]:g}"
                try:
                    ddl.allreduce(x)
                except ddl.InvalidState:
                    state += " InvalidState"
                gc.collect()
                ddl.shutdown()
                os.write(writer, state.encode())
                if how == "exit":
                    del work
                    gc.collect()
            finally:
                os._exit(7)
        os.close(writer)
        answers.append(os.read(reader, 1000).decode())
        os.close(reader)
        answers.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    answers.append(float(work.wait()[0]))
    answers.append(float(ddl.allreduce(x)[999]))
    ddl.barrier()
    return answers


@pytest.mark.processes
@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_no_rank(transport: str) -> None:
    for rank, answers in enumerate(ranks.run(2, fork_and_exit, **connected(transport))):
        assert answers == [f"False {rank} InvalidState", 7] * 2 + [0.5, 0.5]


def die_with_a_child_alive(folder: str) -> Dict[str, Any]:
    """Rank 1 has a forked child that lives on when it is killed; the others must notice all the same."""
    ddl.allreduce(np.ones(50_000))
    if ddl.rank() == 1:
        child = os.fork()
        if child == 0:
            ranks.answers.close()  # only DDL's own descriptors are DDL's to close
            time.sleep(200)  # longer than the others' deadline
            os._exit(0)
        Path(folder, "child").write_text(str(child))
        strike_after(0.1, "killed", folder)
    try:
        while True:
            ddl.allreduce(np.ones(50_000))
    except ddl.Error as error:
        return {"kind": type(error).__name__, "text": str(error)}


@pytest.mark.processes
@pytest.mark.faults
@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_does_not_hide_its_parents_death(transport: str, tmp_path: Path) -> None:
    try:
        answers = ranks.run(3, die_with_a_child_alive, str(tmp_path), may_die=[1], **connected(transport))
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)  # it was alive all the time
    assert int(answers.pop(1)) == -signal.SIGKILL and struck_at(tmp_path)
    for answer in answers:  # the deadline, whose error is another one, is far away
        assert answer["kind"] == "PeerLost" and "rank 1 (host" in answer["text"], answer
