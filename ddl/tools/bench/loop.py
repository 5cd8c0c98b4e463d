"""Checks the values of a library's collective, then times its calls.

For each size: (1) Every set of buffers is filled with a pattern and checked after one call. (2) Warm-up. (3) The timed
calls use the sets of buffers in turn. Up to LATENCY_BYTES, calls follow one another at once, because a barrier would
distort them. Above, the rank writes each buffer before its call, as a backward pass does, and a barrier of the library
separates that from the call. The last timed call is on a pattern and is checked.

All ranks make the same number of calls. A wrong value ends the program with status 1.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from ddl.tools.bench.library import BufferSet, Library
from ddl.tools.bench.values import LATENCY_BYTES, CollectiveCall, bits_of, contribution, expected

__all__ = ["buffer_sets", "measure"]

ROTATED = 64 << 20  #: bytes of buffers that are used in turn, as long as there are at least two sets


def buffer_sets(nbytes: int, cycle: int) -> int:
    """Return how many sets of buffers are used in turn: 2 to 4, and every root of a cycle has one."""
    return cycle * -(-max(2, min(4, ROTATED // nbytes)) // cycle)


def fill(slot: BufferSet, work: CollectiveCall, rank: int, salt: int) -> None:
    """Write the pattern that ``check`` expects the result of."""
    slot.source[:] = contribution(work, rank, salt, slot.root)


def check(slot: BufferSet, work: CollectiveCall, rank: int, salt: int, returned: Any, when: str) -> None:
    """Compare every element of a result; the first wrong one ends the program."""
    got, want = slot.result(returned), expected(work, rank, salt, slot.root)
    if got.shape == want.shape and np.array_equal(got, want):
        return
    index = int(np.flatnonzero(got != want)[0]) if got.shape == want.shape else -1
    seen = f"{got[index]} instead of {want[index]}" if index >= 0 else f"shape {got.shape} instead of {want.shape}"
    unit = "" if work.dtype == "float32" else f" (bits of {work.dtype})"
    print(
        f"wrong value: rank {rank}, {work.collective} of {work.nbytes} bytes, {when}: first wrong index {index}: "
        f"{seen}{unit}",
        file=sys.stderr,
        flush=True,
    )
    sys.exit(1)


def back_to_back(slots: List[BufferSet], last: BufferSet, calls: int, cycle: int) -> Tuple[List[float], float, Any]:
    """Time ``calls`` calls, ``cycle`` of them at a time; return seconds per call, CPU seconds, the last result."""
    runs = [slots[i % len(slots)].run for i in range(calls)]
    runs[-1] = last.run
    clock = time.perf_counter_ns
    seconds: List[float] = []
    returned: Any = None
    cpu = time.process_time()
    if cycle == 1:
        for run in runs:
            start = clock()
            returned = run()
            seconds.append((clock() - start) * 1e-9)
    else:
        for first in range(0, calls, cycle):
            start = clock()
            for run in runs[first : first + cycle]:
                returned = run()
            seconds.append((clock() - start) * 1e-9 / cycle)
    return seconds, time.process_time() - cpu, returned


def after_barriers(
    library: Library, work: CollectiveCall, slots: List[BufferSet], calls: int, last_salt: int
) -> Tuple[List[float], float, Any]:
    """Time ``calls`` calls, each after its buffer was written and all ranks have met; returns as ``back_to_back``."""
    clock, cpu_clock = time.perf_counter_ns, time.process_time_ns
    bits_of_1 = bits_of(work.dtype, np.ones(1))[0]
    seconds: List[float] = []
    cpu, returned = 0, None
    for i in range(calls):
        slot = slots[i % len(slots)]
        returned = None  # a result that the library made is freed here, outside of the timed region
        if i == calls - 1 and last_salt:
            fill(slot, work, library.rank, last_salt)
        else:
            slot.source.fill(bits_of_1)
        library.barrier()
        cpu_start = cpu_clock()
        start = clock()
        returned = slot.run()
        end = clock()
        cpu += cpu_clock() - cpu_start
        seconds.append((end - start) * 1e-9)
    return seconds, cpu * 1e-9, returned


def measure(
    library: Library, work: CollectiveCall, calls: int, warmup: int, distance: Callable[[], float] = lambda: 0.0
) -> Dict[str, Any]:
    """Return the seconds of each call, the CPU seconds of all, how many they were, and the distances around them."""
    rank, nbytes = library.rank, work.nbytes
    # A small broadcast's root is done before the others have it; so each rank is root in turn, and a cycle is timed.
    cycle = work.size if work.collective == "broadcast" and nbytes <= LATENCY_BYTES else 1
    calls = cycle * -(-calls // cycle)
    slots = [library.slot(work, i % work.size) for i in range(buffer_sets(nbytes, cycle))]
    for salt, slot in enumerate(slots):
        fill(slot, work, rank, salt)
        check(slot, work, rank, salt, slot.run(), f"buffers {salt}, before timing")
    salt = len(slots)
    gc.collect()
    gc.disable()
    if nbytes <= LATENCY_BYTES:
        last = library.slot(work, (calls - 1) % work.size)
        for slot in [*slots, last]:
            slot.source.fill(0)  # sums of it stay 0, however often
        library.barrier()
        back_to_back(slots, last, cycle * -(-max(1, warmup) // cycle), cycle)
        fill(last, work, rank, salt)
        library.barrier()
        before = distance()
        seconds, cpu, returned = back_to_back(slots, last, calls, cycle)
    else:
        after_barriers(library, work, slots, warmup, 0)
        last = slots[(calls - 1) % len(slots)]
        library.barrier()
        before = distance()
        seconds, cpu, returned = after_barriers(library, work, slots, calls, salt)
    library.barrier()  # some libraries send the rest of a call in the next one
    probes = [before, distance()]
    gc.enable()
    check(last, work, rank, salt, returned, "the last timed call")
    return {"seconds": seconds, "cpu": cpu, "calls": calls, "probes": probes}
