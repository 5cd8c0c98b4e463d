"""``ddl bench training``: a training step with DDL against DistributedDataParallel over gloo and against no averaging.

Every round starts each contestant anew, in an order that turns from round to round, so that a slow minute hits all of
them. One thread per rank. ``alone`` is the same training as independent processes at the same time: what a step costs
beyond it is *exposed* communication. ``+malloc``: glibc keeps freed memory, as ``ddl_torch`` lets it do by default.
Exits with 1 if ranks hold different weights, if DDL's differ from DDP's, or if DDL is slower than ``--floor`` allows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from ddl.tools.bench.training_report import Figures, fastest_ddp, figures, plot, table

__all__ = ["CONTESTANTS", "Contestant", "add_arguments", "run"]

NAMES = ("digits", "resnet", "transformer")  # models.py has them; it needs torch, so only the ranks import it
TIMEOUT = 600  # seconds for one contestant of one round
TOLERANCE = 1e-5  # of DDL's weights against DDP's, relative to the norm of each tensor

#: What ddl_torch sets with mallopt, as glibc's variables.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


@dataclass(frozen=True)
class Contestant:
    """``library`` is one of training_worker.py; ``malloc``: glibc is told to keep freed memory."""

    library: str
    malloc: bool

    def environment(self) -> Dict[str, str]:
        if self.library == "ddl":  # sets it itself
            return {"DDL_TORCH_TUNE_ALLOCATOR": "1" if self.malloc else "0"}
        return MALLOC if self.malloc else {}


CONTESTANTS: Dict[str, Contestant] = {
    "alone": Contestant("alone", malloc=False),
    "alone+malloc": Contestant("alone", malloc=True),
    "ddl": Contestant("ddl", malloc=True),
    "ddl-malloc": Contestant("ddl", malloc=False),  # only where it is named: nobody needs to run it so
    "ddp": Contestant("ddp", malloc=False),
    "ddp+malloc": Contestant("ddp", malloc=True),
    "ddp+view": Contestant("ddp_view", malloc=False),
    "ddp+view+malloc": Contestant("ddp_view", malloc=True),
}
DEFAULT = tuple(name for name in CONTESTANTS if name != "ddl-malloc")


class Failed(Exception):
    """A contestant ended with an error, or with wrong weights; the text says which and how."""


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ddl bench training``."""
    parser.add_argument("--models", type=_names(NAMES), default=list(NAMES), help=f"of {','.join(NAMES)} (all)")
    parser.add_argument(
        "--contestants",
        type=_names(list(CONTESTANTS)),
        default=list(DEFAULT),
        help=f"of {','.join(CONTESTANTS)} (all but ddl-malloc)",
    )
    parser.add_argument("--ranks", type=_positive, default=2, help="processes, of one thread each (%(default)s)")
    parser.add_argument("--rounds", type=_positive, default=3, help="starts of each contestant (%(default)s)")
    parser.add_argument("--steps", type=_positive, help="steps to time in each round (some seconds' worth)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, machine and command there")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the steps, with the exposed part apart")
    parser.add_argument(
        "--floor", type=float, metavar="X", help="exit with 1 if DDL's steps per second are under X of the fastest DDP"
    )


def start(contestant: Contestant, model: str, ranks: int, steps: Optional[int], save: Optional[Path]) -> List[Any]:
    """Run one contestant of one round; return what each rank wrote. Raises ``Failed``."""
    environment = {name: value for name, value in os.environ.items() if name not in MALLOC}
    environment.update(OMP_NUM_THREADS="1", **contestant.environment())
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        line = [sys.executable, "-m", "ddl.run", "-np", str(ranks), "--no-prefix"]
        line += [sys.executable, "-u", "-m", "ddl.tools.bench.training_worker", contestant.library, model]
        line += ["--directory", name] + (["--steps", str(steps)] if steps else []) + (["--save"] if save else [])
        try:
            ended = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"did not end within {late.timeout:.0f} s") from None
        if ended.returncode != 0:
            raise Failed(f"ended with status {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        if save is not None:
            (directory / "weights.npz").replace(save)
        return [json.loads((directory / f"rank.{rank}.json").read_text("utf-8")) for rank in range(ranks)]


def check_agreement(ours: Path, theirs: Path) -> None:
    """Raise ``Failed`` if two files of weights differ by more than ``TOLERANCE``."""
    import numpy as np

    with np.load(ours) as mine, np.load(theirs) as other:
        for name in other.files:
            apart = float(np.linalg.norm(mine[name] - other[name]) / max(np.linalg.norm(other[name]), 1e-30))
            if not apart <= TOLERANCE:
                raise Failed(f"the weights of {name} are {apart:.1e} (relative) from those of DDP after the same steps")


def measure(model: str, given: argparse.Namespace) -> Dict[str, Figures]:
    """Run every round of one model and return each contestant's figures. Raises ``Failed``."""
    collected: Dict[str, List[List[Any]]] = {name: [] for name in given.contestants}
    saved: Dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(given.rounds):
            turn = number % len(given.contestants)
            for name in given.contestants[turn:] + given.contestants[:turn]:
                print(f"{model}, round {number + 1}/{given.rounds}: {name}", file=sys.stderr)
                contestant = CONTESTANTS[name]
                save = None
                if number == 0 and contestant.library not in saved and contestant.library in ("ddl", "ddp"):
                    save = saved[contestant.library] = Path(directory) / f"{contestant.library}.npz"
                try:
                    collected[name].append(start(contestant, model, given.ranks, given.steps, save))
                    if save is not None and len(saved) == 2:
                        check_agreement(saved["ddl"], saved["ddp"])
                except Failed as failure:
                    raise Failed(f"{model}, {name}: {failure}") from None
    return figures(collected, given.ranks)


def machine() -> Dict[str, Any]:
    """Return what a stranger must know of the machine."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "platform": platform.platform(),
        "cpu": cpu[0].split(":")[1].strip() if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def too_slow(model: str, results: Dict[str, Figures], floor: float) -> Optional[str]:
    """Return what to say if DDL is slower than the fastest DDP by more than ``floor`` allows, else None."""
    best = fastest_ddp(results)
    if best is None or "ddl" not in results:
        return f"{model}: --floor needs ddl and one of the ddp contestants"
    ratio = results[best].step_ms / results["ddl"].step_ms
    return None if ratio >= floor else f"{model}: {ratio:.3f} times as fast as {best}, under the floor of {floor}"


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark; return the exit status."""
    everything: Dict[str, Dict[str, Figures]] = {}
    complaints: List[str] = []
    for model in arguments.models:
        try:
            everything[model] = results = measure(model, arguments)
        except Failed as failure:
            print(f"ddl bench training: {failure}", file=sys.stderr)
            return 1
        print(f"\n{model}, {arguments.ranks} ranks on {os.cpu_count()} cores, one thread each")
        print(table(results), flush=True)
        slow = too_slow(model, results, arguments.floor) if arguments.floor is not None else None
        complaints += [slow] if slow else []
    if arguments.json:
        facts = {"command": sys.argv, "machine": machine(), "ranks": arguments.ranks, "rounds": arguments.rounds}
        found = {m: {name: asdict(one) for name, one in results.items()} for m, results in everything.items()}
        arguments.json.write_text(json.dumps({**facts, "models": found}, indent=1) + "\n", encoding="utf-8")
    if arguments.plot:
        plot(everything, arguments.plot)
    for complaint in complaints:
        print(f"ddl bench training: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="ddl bench training", description=(__doc__ or "").splitlines()[0])
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
