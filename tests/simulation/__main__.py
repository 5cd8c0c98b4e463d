"""``python -m tests.simulation --seeds N --from K``: runs N schedules, and shows the first that fails, shrunk."""

from __future__ import annotations

import argparse
import concurrent.futures
import gc
import sys
import time
from typing import Counter, Dict, List, Tuple

from tests.simulation.faults import draw
from tests.simulation.runs import Outcome, play, shrunk

_CHUNK = 100
_NAMES = {False: "safety", True: "liveness"}


def several(first: int, count: int, liveness: bool) -> Tuple[int, int, Dict[str, int], str]:
    """Run seeds. Return the first that fails (-1: none), how many events there were, what was counted, and why."""
    events = 0
    counts: Counter[str] = Counter()
    gc.collect()
    gc.disable()  # a run makes few cycles, but many objects: to look for cycles takes a quarter of the time
    for seed in range(first, first + count):
        outcome = play(draw(seed), liveness=liveness)
        events += outcome.events
        counts.update(outcome.counts)
        if outcome.violation:
            return seed, events, counts, outcome.violation
    return -1, events, counts, ""


def show(seed: int, liveness: bool, trace: bool) -> None:
    """Print the smallest schedule that fails as ``seed`` does."""
    rule = play(draw(seed), liveness=liveness).rule
    small = shrunk(draw(seed), lambda schedule: play(schedule, liveness=liveness).rule == rule)
    outcome: Outcome = play(small, liveness=liveness, trace=True)
    for line in (outcome.trace or [])[-400:] if trace else []:
        print(line[:300])
    print(f"seed {seed} ({_NAMES[liveness]}): {outcome.violation}\nshrunk to {small}")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--mode", choices=["safety", "liveness", "both"], default="both")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="print what was said in the run that fails")
    parser.add_argument("--counts", action="store_true", help="print how often what has happened")
    options = parser.parse_args()
    modes = {"safety": [False], "liveness": [True], "both": [False, True]}[options.mode]
    began, events = time.perf_counter(), 0
    counts: Counter[str] = Counter()
    chunks: List[Tuple[int, int, bool]] = [
        (first, min(_CHUNK, options.first + options.seeds - first), mode)
        for mode in modes
        for first in range(options.first, options.first + options.seeds, _CHUNK)
    ]
    runs = 0
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        jobs = pool.map(several, *zip(*chunks)) if options.jobs > 1 else map(several, *zip(*chunks))
        for (first, count, liveness), (failed, more, counted, why) in zip(chunks, jobs):
            runs, events = runs + count, events + more
            counts.update(counted)
            rate = runs / (time.perf_counter() - began) * 60
            line = f"{_NAMES[liveness]}: seeds to {first + count - 1} ran, {rate:.0f} a minute, {events} events"
            print(f"\r{line}", end="", flush=True, file=sys.stderr)
            if failed >= 0:
                print(f"\nseed {failed}: {why}")
                pool.shutdown(wait=False, cancel_futures=True)
                show(failed, liveness, options.trace)
                return 1
    print(file=sys.stderr)
    minutes = (time.perf_counter() - began) / 60
    which = " and ".join(_NAMES[mode] for mode in modes)
    last = options.first + options.seeds - 1
    print(f"seeds {options.first} to {last}, {which}: {events} events in {minutes:.0f} min")
    print("all hold")
    for name, times in sorted(counts.items()) if options.counts else []:
        print(f"{times:8} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
