"""``python -m benchmarks training``: a step with DDL, with DistributedDataParallel over gloo, and without averaging.

Every round starts all contestants anew. They then run blocks of steps in turn, a second or so each, while the others
sleep, so that a slow moment of the machine hits all of them; what was disturbed is left out and repeated
(blocks.py). One thread per rank. ``alone`` is the same training as independent processes at the same time:
what a step costs beyond it is *exposed* communication. ``+malloc``: glibc keeps freed memory, as ``ddl_torch`` lets it
do by default.

Exits with 1 if ranks hold different weights, if DDL's differ from DDP's, or if DDL is slower than ``--floor`` allows.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from benchmarks import machine
from benchmarks.training.blocks import Block, Chosen, Start, choose
from benchmarks.training.report import TrainingFigures, about, fastest_ddp, figures, plot, table
from benchmarks.training.start import CONTESTANTS, DEFAULT, Failed, Running
from ddl.tools.files import write_json
from ddl.tools.progress import Progress

__all__ = ["add_arguments", "run"]

# models.py has them; it needs torch, so only the ranks import it
NAMES = ("digits", "resnet", "transformer", "resnet-224", "transformer-768")
DEFAULT_NAMES = {"cpu": ["digits", "resnet", "transformer"], "cuda": ["resnet-224", "transformer-768"]}
MOST_ROUNDS = 3  # times as many as were asked for, where many were disturbed
BLOCKS = 5  # of steps, that each start of a contestant runs
# Of DDL's weights against DDP's, relative to the norm of each tensor; a GPU does not add in the same order every time.
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}


def _names(known: Sequence[str]) -> Any:
    def parse(text: str) -> List[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``python -m benchmarks training``."""
    parser.add_argument(
        "--models", type=_names(NAMES), help=f"of {','.join(NAMES)} (the first three; with --device cuda the others)"
    )
    parser.add_argument("--device", choices=sorted(TOLERANCE), default="cpu", help="where it trains (%(default)s)")
    parser.add_argument(
        "--contestants",
        type=_names(list(CONTESTANTS)),
        default=list(DEFAULT),
        help=f"of {','.join(CONTESTANTS)} (all but ddl-malloc and ddp-over-ddl)",
    )
    parser.add_argument("--ranks", type=_positive, default=2, help="processes, of one thread each (%(default)s)")
    parser.add_argument(
        "--rounds",
        type=_positive,
        default=3,
        help="starts of each contestant, up to three times as many where some were disturbed (%(default)s)",
    )
    parser.add_argument("--most-rounds", type=_positive, metavar="N", help="at most so many (three times --rounds)")
    parser.add_argument("--steps", type=_positive, help="steps of a block (a second's worth)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, machine and command there")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the steps, with the exposed part apart")
    parser.add_argument(
        "--floor", type=float, metavar="X", help="exit with 1 if DDL's steps per second are under X of the fastest DDP"
    )


def check_agreement(ours: Path, theirs: Path, tolerance: float) -> None:
    """Raise ``Failed`` if two files of weights differ by more than ``tolerance``."""
    import numpy as np

    with np.load(ours) as own, np.load(theirs) as other:
        for name in other.files:
            apart = float(np.linalg.norm(own[name] - other[name]) / max(np.linalg.norm(other[name]), 1e-30))
            if not apart <= tolerance:
                raise Failed(f"the weights of {name} are {apart:.1e} (relative) from those of DDP after the same steps")


def measure(model: str, given: argparse.Namespace) -> Chosen:
    """Run every round of one model and return what is compared of each contestant. Raises ``Failed``."""
    collected: Dict[str, List[Start]] = {name: [] for name in given.contestants}
    saved: Dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as directory, Progress() as progress:
        for number in range(given.most_rounds or MOST_ROUNDS * given.rounds):
            if number >= given.rounds and choose(collected, given.rounds).enough:
                break
            if number == given.rounds:
                progress.note("rounds are added: in too many, others used the cores, or these moved apart")
            rounds = max(given.rounds, number + 1)
            progress.step(f"{model}, round {number + 1} of {rounds}", rounds)
            for name, start in one_round(model, given, number, saved, Path(directory)).items():
                collected[name].append(start)
            if number == 0 and len(saved) == 2:
                check_agreement(saved["ddl"], saved["ddp"], TOLERANCE[given.device])
    return choose(collected, given.rounds)


def one_round(
    model: str, given: argparse.Namespace, number: int, saved: Dict[str, Path], directory: Path
) -> Dict[str, Start]:
    """Start everyone, let them run blocks of steps in turn, and return what they wrote. Raises ``Failed``.

    To start takes most of the time on a GPU, so as many start at the same time as there are cores for.
    """
    at_once = max(1, len(os.sched_getaffinity(0)) // (2 * given.ranks))
    turn = number % len(given.contestants)
    order = given.contestants[turn:] + given.contestants[:turn]
    with contextlib.ExitStack() as stack:
        running: Dict[str, Running] = {}
        for first in range(0, len(order), at_once):
            group = order[first : first + at_once]
            for name in group:
                contestant, save = CONTESTANTS[name], None
                if number == 0 and contestant.library not in saved and contestant.library in ("ddl", "ddp"):
                    save = saved[contestant.library] = directory / f"{contestant.library}.npz"
                running[name] = Running(name, model, given.ranks, given.steps, save, given.device)
                stack.callback(running[name].close)
            for name in group:
                running[name].wait_until_ready()
        for i in range(BLOCKS):
            for name in order[i % len(order) :] + order[: i % len(order)]:
                running[name].block()
        return {name: running[name].end() for name in order}


def _brief(blocks: Sequence[Block]) -> List[Dict[str, Any]]:
    """Return what is kept of every block: enough to choose and compare anew."""
    brief = []
    for block in blocks:
        medians = [round(1e3 * statistics.median(seconds), 4) for seconds in block.seconds]
        steps = {"steps": len(block.seconds[0]), "median_ms": medians, "others": round(block.others, 3)}
        brief.append({"round": block.round, **steps, "distance": block.distance, "probes_ns": block.probes})
    return brief


def too_slow(model: str, results: Dict[str, TrainingFigures], floor: float) -> Optional[str]:
    """Return what to say if DDL is slower than the fastest DDP by more than ``floor`` allows, else None."""
    best = fastest_ddp(results)
    if best is None or "ddl" not in results:
        return f"{model}: --floor needs ddl and one of the ddp contestants"
    ratio = results[best].step_ms / results["ddl"].step_ms
    return None if ratio >= floor else f"{model}: {ratio:.3f} times as fast as {best}, under the floor of {floor}"


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark; return the exit status."""
    everything: Dict[str, Dict[str, TrainingFigures]] = {}
    chosen: Dict[str, Chosen] = {}
    complaints: List[str] = []
    print(machine.describe(machine.facts()))
    for model in arguments.models or DEFAULT_NAMES[arguments.device]:
        try:
            chosen[model] = measure(model, arguments)
        except Failed as failure:
            print(f"python -m benchmarks training: {failure}", file=sys.stderr)
            return 1
        where = f"on {os.cpu_count()} cores, one thread each" if arguments.device == "cpu" else "on GPUs"
        print(f"\n{model}, {arguments.ranks} ranks {where}")
        everything[model] = results = figures(chosen[model])
        print(about(chosen[model]))
        print(table(results), flush=True)
        slow = too_slow(model, results, arguments.floor) if arguments.floor is not None else None
        complaints += [slow] if slow else []
    if arguments.json:
        facts = {
            "command": machine.command(),
            "machine": machine.facts(),
            "device": arguments.device,
            "ranks": arguments.ranks,
            "rounds": arguments.rounds,
        }
        models = {m: {name: asdict(result) for name, result in results.items()} for m, results in everything.items()}
        blocks = {m: {name: _brief(of_name) for name, of_name in choice.blocks.items()} for m, choice in chosen.items()}
        distances = {m: choice.distances for m, choice in chosen.items()}
        written = {**facts, "models": models, "distances_ns": distances, "blocks": blocks}
        write_json(arguments.json, written)
    if arguments.plot:
        plot(everything, arguments.plot)
    for complaint in complaints:
        print(f"python -m benchmarks training: {complaint}", file=sys.stderr)
    return 1 if complaints else 0
