"""Steady state costs nothing: no allocation, no mutex, no system call of the core's; and nobody burns a core waiting.

The ranks run with a small library preloaded that counts (steady_counter.c); what they call stands in steady_rank.py.
A machine may take a core away from a rank, and then the other one yields, then sleeps, and then looks after its peers.
So they are counted in many short windows: there must be one without any system call, and no window without sleep may
have an allocation or a mutex. Large operations over sockets may sleep in every window, where the wire is slow: then
the windows count in which no call took so long that peers were looked after.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from bounds import at_most
from core.jobs import connected

import ddl
from ddl import _core
from ddl.store.server import StoreServer

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores for this"),
]

HERE = Path(__file__).resolve().parent
WINDOWS = 60
LOOKED_AFTER = 5e-3  #: seconds of waiting after which the core looks after peers, which costs: kSlowChecks of lane.cc
Calls = List[List[Dict[str, Any]]]  # rank -> window -> kind -> function -> calls; "longest" -> seconds of a call

#: What the core may import without being counted: they enter the kernel neither by themselves nor to wait.
HARMLESS = {
    *("free", "getpid", "__register_atfork", "pthread_mutex_unlock", "pthread_once", "pthread_self", "sysconf"),
    "clock_gettime",
    *("getrandom", "getrlimit"),  # once, when the arena is made
    *("memchr", "memcmp", "memcpy", "memmove", "memset", "strchr", "strcmp", "strlen", "strncmp", "strerror_r"),
    *("abort", "bcmp", "snprintf", "vsnprintf", "__errno_location", "__tls_get_addr", "__libc_single_threaded"),
    *(
        "__stack_chk_fail",
        "__dynamic_cast",
        "__once_proxy",
        "__gmon_start__",
        "__gxx_personality_v0",
        "_dl_find_object",
    ),
}
#: Called once in a process, for the first array on a GPU, or when staging for such arrays grows.
FOR_GPUS = {"dlopen", "dlsym", "dlerror", "sched_getaffinity", "__sched_cpucount"}
#: Called after a failure only: whether a rank may still write to this one's arrays.
AFTER_A_FAILURE = {"mprotect", "opendir", "readdir", "closedir", "fopen", "fgets", "fclose", "strrchr"}
#: Of the C++ library: those that could wait or enter the kernel.
WAITS = re.compile("condition_variable|mutex|sleep|semaphore|future|random_device|filebuf|fstream|filesystem")


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that counts, built here."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler to build the counting library with")
    library = tmp_path_factory.mktemp("steady") / "steady_counter.so"
    flags = ["-x", "c", "-std=gnu11", "-O1", "-fno-builtin", "-shared", "-fPIC"]
    command = [compiler, *flags, "-o", str(library), str(HERE / "steady_counter.c"), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if "__libc_malloc" in built.stderr:
        pytest.skip("this C library is not glibc")
    assert built.returncode == 0, built.stderr
    return library


def run_ranks(counter: Path, case: str, windows: int = WINDOWS, until_one_is_free: bool = False, **env: str) -> Calls:
    """Run ``case`` on two ranks; each is a process of its own from the start, so that it can be preloaded."""
    secret = secrets.token_bytes(32)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(StoreServer(secret, 2))
        # Files: a rank with much to say would wait at a pipe, and with it, in the barrier, the rank that is read first.
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
        processes = []
        for rank in range(2):
            variables = {**os.environ, **ranks.environment(rank, 2, store.address, secret.hex()), **env}
            variables.update({"LD_PRELOAD": str(counter), "DDL_TIMEOUT": "100", "DDL_START_TIMEOUT": "100"})
            variables["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
            program = [sys.executable, str(HERE / "steady_rank.py"), str(counter), case]
            program += [str(windows), str(until_one_is_free)]
            process = subprocess.Popen(program, env=variables, stdout=outputs[rank], stderr=subprocess.PIPE, text=True)
            processes.append(process)
        try:
            errors = [process.communicate(timeout=240)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for process, text in zip(processes, errors):
            assert process.returncode == 0, text
        for output in outputs:
            output.seek(0)
        return [json.load(output) for output in outputs]


def calls_of(answers: Calls, kind: str) -> List[Dict[str, int]]:
    """What both ranks called of ``kind``, for each window."""
    return [
        {
            f"rank {rank}: {function}": number
            for rank, counts in enumerate(both)
            for function, number in counts[kind].items()
        }
        for both in zip(*answers)
    ]


def costs(answers: Calls) -> Dict[int, List[Dict[str, int]]]:
    """The allocations and mutexes of each window in which nobody slept, if there were any: by the window's number.

    A rank that was not given a core for long makes the other one look after its peers, also without sleep.
    """
    allocations, mutexes, calls = (calls_of(answers, kind) for kind in ("allocations", "mutexes", "system calls"))
    assert len(calls) >= WINDOWS
    longest = [max(counts["longest"] for counts in both) for both in zip(*answers)]
    quick = [number for number, seconds in enumerate(longest) if seconds < LOOKED_AFTER]
    awake = [number for number in quick if not any(name.endswith((": syscall", ": ppoll")) for name in calls[number])]
    counted = awake or quick
    if not counted:
        pytest.skip(f"calls take {1e3 * statistics.median(longest):.1f} ms on this machine now: peers are looked after")
    return {
        number: [allocations[number], mutexes[number]] for number in counted if allocations[number] or mutexes[number]
    }


def run_free(counter: Path, case: str, until_one_is_free: bool = False, **env: str) -> List[Dict[str, int]]:
    """Run ``case``; check that no window in which nobody slept costs anything; return the system calls of all.

    On a crowded machine something that happens once may fall into a window: a connection that is adopted late, the
    GIL changing hands. What calls themselves cost comes again, so a run with few such windows is made once more.
    """
    answers = run_ranks(counter, case, until_one_is_free=until_one_is_free, **env)
    dear = costs(answers)
    if 0 < len(dear) <= len(answers[0]) // 20:
        answers = run_ranks(counter, case, until_one_is_free=until_one_is_free, **env)
        again = costs(answers)
        assert not again, f"windows that cost something: {again}, and in the run before {dear}"
    else:
        assert not dear, f"windows that cost something: {dear}"
    return calls_of(answers, "system calls")


def check_free(counter: Path, case: str) -> None:
    """No allocation, no mutex; and one window without anything at all."""
    calls = run_free(counter, case, until_one_is_free=True)
    assert {} in calls, f"the core made system calls in each of {len(calls)} windows: {calls[:WINDOWS]}"


def on_free_cores(function: Any) -> Any:
    """Mark a test that counts what happens in short windows: there are none without a break on a busy machine."""
    return pytest.mark.slow(pytest.mark.alone(function))


PREPARED = [f"{size} {memory}" for size in ("8 B", "1 KiB", "64 KiB", "4 MiB") for memory in ("shared", "private")]


@on_free_cores
@pytest.mark.parametrize("case", PREPARED)
def test_a_prepared_operation_costs_nothing(counter: Path, case: str) -> None:
    check_free(counter, case)


VERBS = [
    "allreduce_",
    "allreduce",
    "allreduce_ 64 KiB",
    "broadcast_",
    "reducescatter",
    "allgather",
    "alltoall",
    "barrier",
    "taking turns",
]


@on_free_cores
@pytest.mark.parametrize("case", VERBS)
def test_a_blocking_call_allocates_nothing(counter: Path, case: str) -> None:
    check_free(counter, case)


@on_free_cores
@pytest.mark.parametrize("case", ["tcp 8 B", "tcp 64 KiB", "tcp 4 MiB"])
def test_over_sockets_only_the_sockets_cost(counter: Path, case: str) -> None:
    for calls in run_free(counter, case, DDL_SHM="0"):
        functions = {name.split(": ")[1] for name in calls}
        assert {"sendmsg", "readv"} <= functions <= {"sendmsg", "readv", "sched_yield", "ppoll", "eventfd_read"}, calls


@pytest.mark.few(1)
@pytest.mark.parametrize(("shared", "sleep"), [("1", "syscall"), ("0", "ppoll")], ids=["shared", "tcp"])
def test_a_rank_that_is_always_late_is_waited_for_asleep(counter: Path, shared: str, sleep: str) -> None:
    """Rank 0 waits three times. It must not yield even once before it sleeps, nor look many times; and it is woken.

    It looks up by itself every 20 ms, and a busy machine may keep it from sleeping again at once.
    """
    answers = run_ranks(counter, "always late", windows=5, DDL_SHM=shared)
    for calls in calls_of(answers, "system calls"):
        assert calls.get(f"rank 0: {sleep}", 0) >= 3 and "rank 0: sched_yield" not in calls, calls
        assert calls.get("rank 0: readv", 0) <= 3 * 10, calls
    woken = [calls.get("rank 0: woken", 0) for calls in calls_of(answers, "wake-ups")]
    assert sum(woken) >= 5 or shared == "0", f"woken {woken} times in windows of 3 waits"


@pytest.mark.slow
def test_a_rank_that_is_not_late_any_more_is_waited_for_awake(counter: Path) -> None:
    """This also shows that the counter counts: somebody yields, and then sleeps."""
    for calls in calls_of(run_ranks(counter, "late for a while", windows=5), "system calls"):
        assert calls.get("rank 0: syscall", 0) >= 9 and calls.get("rank 0: sched_yield", 0) >= 1, calls


def test_what_the_core_imports_is_counted_or_harmless() -> None:
    """A call that is new to the core must be put on one of the lists."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm to look into the core with")
    listing = subprocess.run(
        [nm, "-D", "--undefined-only", "--format=posix", _core.__file__], capture_output=True, text=True, check=True
    )
    names = {line.split()[0].split("@")[0] for line in listing.stdout.splitlines()}
    if any(name.startswith(("__asan", "__tsan", "__ubsan")) for name in names):
        pytest.skip("built with a sanitizer, which brings functions of its own")
    text = (HERE / "steady_counter.c").read_text()
    counted = set(re.findall(r"^(?:COUNTED\(\w+, |ALLOCATOR\(|int |long )(\w+)", text, re.MULTILINE))
    assert {"malloc", "posix_memalign", "sendmsg", "syscall"} <= counted
    assert {"malloc", "memcpy", "sched_yield"} & names, f"nm shows none of what must be there: {sorted(names)[:20]}"
    cplusplus = {name for name in names if name.startswith(("_Z", "__cxa_", "_Unwind_", "_ITM_"))}
    assert not [name for name in cplusplus if WAITS.search(name)]
    of_c = {re.sub(r"^__(\w+)_chk$", r"\1", name) for name in names - cplusplus if not re.match("_?Py", name)}
    unknown = of_c - counted - HARMLESS - FOR_GPUS - AFTER_A_FAILURE
    assert not unknown, f"neither counted by steady_counter.c nor known to be harmless: {sorted(unknown)}"


# --- waiting --------------------------------------------------------------------------------------------------------


FIRST_REPORT = 2.5  # s, until a rank has told the store its pace for the first time, which takes 17 ms; then it takes 5


def idle() -> Tuple[float, float, int]:
    """What this process does while it does nothing, after it has done everything: CPU seconds of how many, its naps."""
    x, large = np.ones(4), np.ones(300_000)
    for _ in range(50):
        ddl.allreduce_(x)
        ddl.allreduce_async(large).wait()
    ddl.barrier()
    time.sleep(FIRST_REPORT)
    used, asleep, start = time.process_time(), naps(), time.monotonic()
    time.sleep(2)
    return time.process_time() - used, time.monotonic() - start, naps() - asleep


def naps() -> int:
    """How often the threads of this process have gone to sleep by themselves."""
    texts = [status.read_text() for status in Path("/proc/self/task").glob("*/status")]
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shared", "tcp", "hybrid"])
def test_an_idle_job_uses_no_core(transport: str) -> None:
    def measure() -> List[Tuple[float, float]]:
        answers = ranks.run(4 if transport == "hybrid" else 2, idle, **connected(transport))
        assert all(count <= 40 for _, _, count in answers), answers  # no thread often wakes up to look
        return [(used, seconds) for used, seconds, _ in answers]

    at_most(0.015, measure, "of a core")


def wait_for_a_late_rank() -> Tuple[float, float]:
    """(seconds of processor time, seconds) in a barrier to which the last rank comes 2 s late."""
    for _ in range(50):
        ddl.barrier()
    ranks.meet()
    if ddl.rank() == ddl.size() - 1:
        time.sleep(2)
    used, start = time.process_time(), time.monotonic()
    ddl.barrier()
    return time.process_time() - used, time.monotonic() - start


@pytest.mark.few(1)
@pytest.mark.parametrize(("transport", "size"), [("shared", 2), ("tcp", 2), ("hybrid", 4)])
def test_waiting_for_a_late_rank_uses_hardly_any_core(transport: str, size: int) -> None:
    at_most(0.05, lambda: ranks.run(size, wait_for_a_late_rank, **connected(transport))[:-1], "of a core")


def wait_for_an_always_late_rank(times: int) -> Tuple[float, float]:
    """(seconds of processor time, seconds) in barriers to each of which the last rank comes 5 ms late."""
    for _ in range(50):
        ddl.barrier()
    used, start = time.process_time(), time.monotonic()
    for _ in range(times):
        if ddl.rank() == ddl.size() - 1:
            time.sleep(5e-3)
        ddl.barrier()
    return time.process_time() - used, time.monotonic() - start


@pytest.mark.few(1)
@pytest.mark.parametrize(("transport", "size"), [("shared", 2), ("tcp", 2), ("hybrid", 4)])
def test_waiting_for_an_always_late_rank_uses_hardly_any_core(transport: str, size: int) -> None:
    """Who waits awake for as long as it does for a rank that is late for once, would use 10 % in shared memory."""
    at_most(0.05, lambda: ranks.run(size, wait_for_an_always_late_rank, 300, **connected(transport))[:-1], "of a core")


def hand_overs(times: int) -> float:
    """Seconds of processor time in which two threads of this process hand a byte to and fro, so often."""
    (read_there, write_here), (read_here, write_there) = os.pipe(), os.pipe()

    def other() -> None:
        for _ in range(times):
            os.write(write_there, os.read(read_there, 1))

    thread, start = threading.Thread(target=other), time.process_time()
    thread.start()
    for _ in range(times):
        os.write(write_here, b".")
        os.read(read_here, 1)
    thread.join()
    return time.process_time() - start


def crowded(times: int) -> Tuple[float, float]:
    """Seconds of processor time for small operations of more ranks than cores, and for as many hand-overs."""
    step = ddl.prepare_allreduce(np.ones(1))
    for _ in range(20):
        step()
    start = time.process_time()
    for _ in range(times):
        step()
    return time.process_time() - start, hand_overs(times)


def test_more_ranks_than_cores_get_on() -> None:
    """A rank that waits gives its core to the others: who kept it for its time slice would use 2 ms for each call."""
    size = 2 * len(os.sched_getaffinity(0))
    if size > 16:
        pytest.skip("that many ranks are no test of a small machine")
    at_most(20, lambda: ranks.run(size, crowded, 2000), "of hand-overs by hand")
