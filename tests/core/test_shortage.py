"""A rank without descriptors or threads: it does not flood the log, and every rank's error names the cause."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import threading
import time
from typing import Iterator, Tuple

import numpy as np
import pytest
import ranks
from bounds import Measured, at_most
from said import Said

import ddl
from ddl.bootstrap.environ import Settings

pytestmark = pytest.mark.processes
LIMIT = 64


@contextlib.contextmanager
def no_descriptors() -> Iterator[str]:
    """As long as this lasts, this process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, hard))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield f"too many open files: this process may have {LIMIT}; close some, or raise the limit (ulimit -n)"
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def no_threads() -> Iterator[str]:
    """As long as this lasts, this process can start no thread: there is no memory for such a stack."""
    before = threading.stack_size(1 << 46)
    try:
        yield "no thread can be started; end some, or raise the limit (ulimit -u, or pids.max of the control group)"
    finally:
        threading.stack_size(before)


def meet(moment: str) -> None:
    """Return when both ranks have called this. ``ranks.meet`` would open files."""
    job, rank = ddl.world().job, ddl.rank()
    job.ask(lambda store: store.set(f"{moment} {rank}", "here"))
    job.ask(lambda store: store.get(f"{moment} {1 - rank}", 100.0))


@contextlib.contextmanager
def connecting_in_vain(victim: int, what: str, said: Said) -> Iterator[ddl.Work]:
    """As long as this lasts, rank ``victim`` has no ``what``; an operation is under way that cannot connect, and which
    the victim has said. Yields the operation."""
    with contextlib.ExitStack() as stack:
        expected = ""
        if ddl.rank() == victim:
            expected = stack.enter_context({"descriptors": no_descriptors, "threads": no_threads}[what]())
        meet("before")  # nobody connects before
        work = ddl.allreduce_async(np.ones(1 << 18), op=ddl.Sum)
        deadline = time.monotonic() + 60
        while not any(expected in line for line in said.texts) and ddl.rank() == victim:
            assert time.monotonic() < deadline, said.texts
            time.sleep(0.01)
        meet("in vain")
        yield work


def lasting_shortage(victim: int, what: str) -> Tuple[str, int, Tuple[float, float]]:
    """The error, lines of the log and (processor time, time) of a shortage that is still there at a deadline."""
    said, used, begin = Said(), time.process_time(), time.monotonic()
    with connecting_in_vain(victim, what, said) as work:
        if ddl.rank() == victim:  # the other one has called it, too: its own deadline is far away
            meet("called")
            ddl.world().set_timeout(1.0)
        other = ddl.allreduce_async(np.ones(3))
        if ddl.rank() != victim:
            meet("called")
        with pytest.raises(ddl.CollectiveTimeout) as caught:
            other.wait()
        with pytest.raises(ddl.CollectiveTimeout):
            work.wait()
        meet("failed")
    return str(caught.value), len(said.texts), (time.process_time() - used, time.monotonic() - begin)


@pytest.mark.few(1)
@pytest.mark.parametrize(("victim", "what"), [(0, "descriptors"), (1, "descriptors"), (0, "threads")])
def test_every_rank_learns_what_the_victim_lacks(victim: int, what: str) -> None:
    cause = "too many open files: this process may have 64" if what == "descriptors" else "no thread can be started"

    def measured() -> Measured:
        answers = ranks.run(2, lasting_shortage, victim, what, env={"DDL_SHM": "0"})
        for error, lines, _ in answers:
            assert f"rank {victim} cannot make the connections for it: {cause}" in error
            assert lines <= 3, lines
        return [shares for _, _, shares in answers]

    at_most(0.5, measured, "of a core, between attempts")


def passing_shortage(victim: int, what: str) -> int:
    """How often the victim has spoken of a shortage that ends a while after it has, with its attempts in between."""
    said = Said()
    with connecting_in_vain(victim, what, said) as work:
        time.sleep(0.5)
    assert work.wait()[-1] == ddl.size()
    return len([line for line in said.texts if "too many open files" in line or "no thread" in line])


@pytest.mark.few(2)
@pytest.mark.parametrize(("victim", "what"), [(0, "descriptors"), (1, "descriptors"), (0, "threads")])
def test_a_shortage_that_passes_is_no_failure(victim: int, what: str) -> None:
    answers = ranks.run(2, passing_shortage, victim, what, env={"DDL_SHM": "0"})
    assert answers[victim] == 1  # said once


def dial_without_threads() -> str:
    if ddl.rank() == 1:
        with no_threads(), pytest.raises(ddl.ResourceError, match="rank 1 .* no thread can be started"):
            ddl.allreduce(np.ones(3))
    return str(ddl.allreduce(np.ones(3), op=ddl.Sum).tolist())


def begin_without_threads() -> str:
    """Rank 1 cannot start; it tries again as soon as it can."""
    if os.environ["DDL_RANK"] == "1":
        with no_threads(), pytest.raises(ddl.ResourceError) as caught:
            ddl.init()
        return str(caught.value)
    with pytest.raises(ddl.Error) as lost:
        ddl.init()
    return str(lost.value)


def test_a_rank_that_can_start_no_thread_says_so_in_init() -> None:
    witness, victim = ranks.run(2, begin_without_threads, initialise=False)
    assert "rank 1 cannot join the job: no thread can be started; end some, or raise the limit (ulimit -u" in victim
    assert "rank 1" in witness, witness


def serve_without_threads() -> str:
    with no_threads(), pytest.raises(ddl.ResourceError) as caught:
        ddl.Rendezvous(0, 2, lambda text: "").admission(Settings())
    return str(caught.value)


def test_rank_0_of_a_launcher_that_can_start_no_thread_for_the_store_says_so() -> None:
    (said,) = ranks.run(1, serve_without_threads, initialise=False)
    assert re.search("rank 0 cannot serve the job's store on .*: no thread can be started; end some", said), said


def test_who_calls_learns_that_it_can_start_no_thread_and_may_call_again() -> None:
    assert ranks.run(2, dial_without_threads, env={"DDL_SHM": "0"}) == ["[2.0, 2.0, 2.0]"] * 2
