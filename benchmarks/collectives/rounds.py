"""How contestants take turns: every round starts each of them anew, in an order that rotates."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any, Dict, Iterator, List, Optional, Sequence

from benchmarks.collectives.contestants import Conditions, Contestant
from benchmarks.collectives.launch import run_all
from ddl.tools.bench.figures import Sample
from ddl.tools.progress import Progress

__all__ = ["Samples", "in_turn", "start", "stopped_in_order"]

#: contestant -> size -> its samples
Samples = Dict[str, Dict[int, List[Sample]]]


def in_turn(chosen: Sequence[Contestant], number: int, rounds: int, progress: Progress) -> Iterator[Contestant]:
    """Yield the contestants in the order of round ``number`` of ``rounds``, and show the progress."""
    turn = number % len(chosen)
    for contestant in [*chosen[turn:], *chosen[:turn]]:
        progress.step(f"round {number + 1} of {rounds}: {contestant.name}", rounds * len(chosen))
        yield contestant


def start(contestant: Contestant, setting: Conditions) -> List[Dict[str, Any]]:
    """Run a contestant once and return what its ranks wrote, in rank order; ``ContestantFailed`` if it failed."""
    with tempfile.TemporaryDirectory(prefix="ddl-bench-") as directory:
        output = Path(directory)
        (output / "probe").write_bytes(bytes(4096))
        return run_all(contestant.name, contestant.commands(setting, output), output, setting.ranks)


@contextlib.contextmanager
def stopped_in_order() -> Iterator[None]:
    """Let SIGTERM unwind as Ctrl-C does, so that processes and hosts are taken away."""

    def stop(number: int, frame: Optional[FrameType]) -> None:
        raise SystemExit(128 + number)

    old = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
