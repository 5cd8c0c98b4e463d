"""What test_steady_state.py runs as a rank, with steady_counter.c preloaded: calls something over and over, in windows,
and prints as JSON which of the counted functions the core has called in each.

usage: steady_rank.py LIBRARY NAME WINDOWS UNTIL_ONE_IS_FREE
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from itertools import repeat
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

import ddl
from ddl import _core

KIB, MIB = 1 << 10, 1 << 20
WARM_UP = 20  #: windows until connections, buffers and plans are there
KINDS = ("allocations", "mutexes", "system calls", "wake-ups")  # as in steady_counter.c
LONG = 0.05  #: seconds, for a window that is to take a millisecond or some
MOST_WINDOWS = 2000  #: that are looked at until one is free of system calls


class Counter:
    """The counts of the preloaded library, of calls that come from the core or from the C++ library for it."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.steady_watch.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self._library.steady_name.restype = ctypes.c_char_p
        self._library.steady_calls.restype = ctypes.c_long
        self.watched = 0
        with open("/proc/self/maps") as maps:
            for line in maps:
                if _core.__file__ in line or "/libstdc++" in line:
                    begin, end = (int(word, 16) for word in line.split()[0].split("-"))
                    self._library.steady_watch(begin, end)
                    self.watched += 1

    def read(self) -> Dict[Tuple[str, str], int]:
        """(kind, function) -> calls so far"""
        library = self._library
        return {
            (KINDS[library.steady_kind(i)], library.steady_name(i).decode()): library.steady_calls(i)
            for i in range(library.steady_functions())
        }


def array(nbytes: int, shared: bool) -> np.ndarray:
    x = ddl.empty(nbytes // 4, np.float32) if shared else np.empty(nbytes // 4, np.float32)
    x[:] = 1
    return x


def prepared(nbytes: int, shared: bool) -> Callable[[], Any]:
    return ddl.prepare_allreduce(array(nbytes, shared))


def blocking(verb: str, nbytes: int) -> Callable[[], Any]:
    x, size = array(nbytes, shared=True), ddl.size()
    part = array(nbytes // size, shared=True)
    calls: Dict[str, Callable[[], Any]] = {
        "allreduce_": lambda: ddl.allreduce_(x),
        "allreduce": lambda: ddl.allreduce(x),
        "broadcast_": lambda: ddl.broadcast_(x, root=1),
        "reducescatter": lambda: ddl.reducescatter(x, out=part),
        "allgather": lambda: ddl.allgather(part, out=x),
        "alltoall": lambda: ddl.alltoall(x, out=x.copy()),
        "barrier": ddl.barrier,
    }
    return calls[verb]


def taking_turns() -> Callable[[], Any]:
    """Small operations of different kinds, each of which the core might keep something of."""
    x, small, part, out = np.ones(100), np.ones(1), np.ones(8, np.float32), np.empty(8 * ddl.size(), np.float32)
    steps = [ddl.prepare_allreduce(x), ddl.prepare_allreduce(small)]

    def call() -> None:
        steps[0]()
        ddl.barrier()
        ddl.allgather(part, out=out)
        steps[1]()
        ddl.broadcast_(x)

    return call


#: name: (what is called, how often in a window: for a millisecond or some)
CASES: Dict[str, Tuple[Callable[[], Callable[[], Any]], int]] = {
    "8 B shared": (lambda: prepared(8, True), 2000),
    "8 B private": (lambda: prepared(8, False), 2000),
    "1 KiB shared": (lambda: prepared(KIB, True), 2000),
    "1 KiB private": (lambda: prepared(KIB, False), 2000),
    "64 KiB shared": (lambda: prepared(64 * KIB, True), 300),
    "64 KiB private": (lambda: prepared(64 * KIB, False), 300),
    "4 MiB shared": (lambda: prepared(4 * MIB, True), 10),
    "4 MiB private": (lambda: prepared(4 * MIB, False), 10),
    **{verb: (lambda verb=verb: blocking(verb, 64), 1000) for verb in ("allreduce_", "allreduce", "broadcast_")},
    **{verb: (lambda verb=verb: blocking(verb, 64), 1000) for verb in ("reducescatter", "allgather", "alltoall")},
    "barrier": (lambda: blocking("barrier", 64), 1000),
    "allreduce_ 64 KiB": (lambda: blocking("allreduce_", 64 * KIB), 200),
    "taking turns": (taking_turns, 300),
    "tcp 8 B": (lambda: prepared(8, False), 100),
    "tcp 64 KiB": (lambda: prepared(64 * KIB, False), 20),
    "tcp 4 MiB": (lambda: prepared(4 * MIB, False), 2),
    "always late": (lambda: late(), 3),
    "late for a while": (lambda: late_for_a_while(), 1),
}


def late() -> Callable[[], None]:
    """A barrier to which rank 1 is late, so rank 0 sleeps in the kernel: rank 1 comes when it sees that."""
    state = Path(f"/proc/{int(ddl.broadcast(np.array([os.getpid()]))[0])}/stat")

    def call() -> None:
        if ddl.rank() == 1:
            time.sleep(0.01)
            while state.read_text().rpartition(")")[2].split()[0] != "S":
                time.sleep(0.001)
        ddl.barrier()

    return call


def late_for_a_while() -> Callable[[], None]:
    """Long enough to be learnt, then not for long enough to be forgotten; and once more, which is unexpected."""
    be_late = late()

    def call() -> None:
        for _ in range(8):
            be_late()
        for _ in range(10):
            ddl.barrier()
        be_late()

    return call


def measure(counter: Counter, name: str, windows: int, until_one_is_free: bool) -> List[Dict[str, Any]]:
    """For each window: kind -> function -> calls, without those that were not called; "longest": seconds of a call.

    There are ``windows`` of them, or if wanted more, until no rank made a system call in one. Then they get shorter
    where they take long: a machine with much to do seldom leaves both ranks alone for a millisecond.
    """
    make, times = CASES[name]
    call = make()
    samples: List[Dict[str, Any]] = []
    worst, one_is_free = np.ones(2), not until_one_is_free
    for number in range(-WARM_UP, MOST_WINDOWS):
        if number >= windows and one_is_free:
            break
        time.sleep(0.003)  # who has slept gets a core at once, also on a machine with other things to do
        ddl.barrier()  # both begin at about the same time
        call()
        longest = 0.0
        before = counter.read()
        started = time.perf_counter()
        for _ in repeat(None, times):
            begin = time.perf_counter()
            call()
            longest = max(longest, time.perf_counter() - begin)
        after, took = counter.read(), time.perf_counter() - started
        calls: Dict[str, Any] = {"longest": longest, **{kind: {} for kind in KINDS}}
        for (kind, function), count in after.items():
            if count != before[kind, function]:
                calls[kind][function] = count - before[kind, function]
        if number >= 0:
            samples.append(calls)
        if until_one_is_free:
            worst[:] = bool(calls["system calls"]), took
            ddl.allreduce_(worst, op=ddl.Max)
            one_is_free = one_is_free or (number >= 0 and not worst[0])
            times = max(1, times // 4) if worst[1] > LONG else times
    return samples


def main() -> None:
    library, name, windows, until_one_is_free = sys.argv[1:]
    ddl.init()
    counter = Counter(library)
    assert counter.watched > 0, "the core is nowhere in memory"
    print(json.dumps(measure(counter, name, int(windows), until_one_is_free == "True")), flush=True)
    ddl.barrier()
    ddl.shutdown()


if __name__ == "__main__":
    main()
