"""Others see where a rank is in its Python program, and the rank does not suffer from it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator, List

import numpy as np
import pytest
import ranks

from ddl.records import announcement
from ddl.records import stacks as stacks_module
from ddl.records.announcement import RecordsSocket, announce
from ddl.records.memory import ProcessMemory
from ddl.records.process import OutOfMemory, process_name, process_view
from ddl.records.stacks import STACKS_SIGNAL, python_stacks


def asked_all_the_time():
    """Rank 0 asks both for their stacks while they reduce over shared memory and in the kernel."""
    import ddl

    stacks_module.PATIENCE = 100.0  # on a busy machine, an answer may need longer than a user would wait for it
    pids = ddl.world().allgather_object(os.getpid())
    asked = 0
    for size in (1, 1000, 1 << 20) * 20:
        work = ddl.world().allreduce_async_(np.ones(size), op=ddl.Sum, name="sum")
        if ddl.rank() == 0:
            stacks = python_stacks(pids)
            asked += all("asked_all_the_time" in stacks[pid] or "in wait" in stacks[pid] for pid in pids)
        assert (work.wait() == 2).all()
    ranks.meet()  # until then both are here
    return asked


@pytest.mark.processes
def test_a_rank_that_is_asked_goes_on() -> None:
    assert ranks.run(2, asked_all_the_time)[0] == 60


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds Python's lock in a function of C, from where only a signal gets through."""
    monkeypatch.setattr(stacks_module, "PATIENCE", 100.0)  # it answers, however busy the machine is
    text = """
        import re, sys
        from ddl.records.stacks import let_stacks_be_read
        def holds_the_lock():
            print(let_stacks_be_read(), flush=True)
            re.match("(a*)*b", "a" * 1000)
        holds_the_lock()
    """
    line = [sys.executable, "-c", textwrap.dedent(text)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        while not re.search(r"call first\):\n  File .* in match\n", python_stacks([process.pid])[process.pid]):
            assert process.poll() is None  # it has not come to the function of C
        yield process
        process.kill()


@pytest.mark.processes
def test_a_process_that_holds_pythons_lock_shows_where_it_is(program: subprocess.Popen[str]) -> None:
    # Each answer is what is new. One that was interrupted while it was written may end with the next one.
    stacks = "".join(python_stacks([program.pid])[program.pid] for _ in range(2))
    assert stacks.count("in holds_the_lock") == stacks.count("most recent call first") == 2
    view = process_view(program.pid)
    assert view.state == "runs" and view.cpu_seconds is not None and view.run_delay is not None


@pytest.mark.processes
def test_threads_that_come_and_go_are_not_disturbed() -> None:
    """A handler of a signal that reads the stacks of other threads while they move ends the process."""
    text = """
        import threading
        from ddl.records.stacks import let_stacks_be_read
        def deep(n):
            return 0 if n == 0 else 1 + deep(n - 1)
        def busy():
            while True:
                deep(50)
        let_stacks_be_read()
        threading.Thread(target=busy, daemon=True).start()
        print("begun", flush=True)
        while True:
            thread = threading.Thread(target=deep, args=(30,))
            thread.start()
            thread.join()
    """
    line = [sys.executable, "-c", textwrap.dedent(text)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        answers = 0
        while answers < 200:
            answers += "in busy" in python_stacks([process.pid])[process.pid]
            assert process.poll() is None
        process.kill()


def is_signalled(pid: int) -> bool:
    """Whether the signal for stacks waits for a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(lines["ShdPnd"], 16) >> (STACKS_SIGNAL - 1) & 1)


@pytest.mark.processes
def test_a_process_that_cannot_answer_is_not_asked(program: subprocess.Popen[str]) -> None:
    os.kill(program.pid, signal.SIGSTOP)
    while process_view(program.pid).state != "is stopped":
        time.sleep(0.01)
    with subprocess.Popen(["sleep", "60"]) as other:  # the signal would end it
        assert python_stacks([program.pid, other.pid, 1 << 30]) == {program.pid: "", other.pid: "", 1 << 30: ""}
        assert not is_signalled(program.pid)
        assert other.poll() is None
        other.kill()
    program.kill()
    program.wait()
    assert process_view(program.pid).state == "has ended"


@pytest.mark.processes
def test_a_handler_of_the_user_stays() -> None:
    text = f"""
        import signal
        from ddl.records.stacks import let_stacks_be_read
        signal.signal({int(STACKS_SIGNAL)}, lambda *_: print("mine"))
        print(let_stacks_be_read())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout == "False\n"


def test_a_record_arrives_though_its_process_has_ended() -> None:
    listener = RecordsSocket()
    fd = os.memfd_create("ddl", os.MFD_CLOEXEC)
    os.write(fd, b"what it did")
    child = os.fork()
    if child == 0:
        os._exit(0 if announce(listener.name, fd) else 1)
    assert os.waitpid(child, 0)[1] == 0
    ((pid, received),) = listener.receive()
    assert pid == child and os.pread(received, 100, 0) == b"what it did"
    assert listener.receive() == []
    memory = ProcessMemory(pid, received)
    memory.close()
    os.close(fd)
    listener.close()
    assert not announce(listener.name, 0)  # nobody is there any more, and nothing happens


def test_more_ranks_than_a_socket_queues_are_all_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement, "_PATIENCE", 100.0)  # a hundred threads wait for this one to hear them
    listener = RecordsSocket()
    fd = os.memfd_create("ddl", os.MFD_CLOEXEC)
    with ThreadPoolExecutor(100) as pool:
        sent = [pool.submit(announce, listener.name, fd) for _ in range(1000)]
        heard: List[int] = []
        while not all(each.done() for each in sent):
            heard += [received for _, received in listener.receive()]
        heard += [received for _, received in listener.receive()]
        assert all(each.result() for each in sent) and len(heard) == 1000
    for received in heard:
        os.close(received)
    os.close(fd)
    listener.close()


def test_who_was_not_killed_for_memory() -> None:
    # None: another test has made the kernel kill for memory meanwhile, and the log is not to be read.
    assert OutOfMemory().words(os.getpid(), process_name(os.getpid())) in ("", None)
