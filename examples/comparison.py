"""Shared code of the demos of TensorFlow, Caffe, Chainer and Theano: a table that compares one process with ranks.

Both take the same steps, with one thread each, so they reach the same loss, up to rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence

HERE = Path(__file__).resolve().parent


def parser(ways: Sequence[str] = (), epochs: int = 8, width: int = 32) -> argparse.ArgumentParser:
    """Return a parser of the options that a demo passes to its examples; ``ways``: the names of the examples."""
    argument_parser = argparse.ArgumentParser(
        description="Compare one process with several ranks on handwritten digits."
    )
    argument_parser.add_argument("--ranks", type=int, default=2, help="how many ranks to start (%(default)s)")
    argument_parser.add_argument("--epochs", type=int, default=epochs, help="passes over the digits (%(default)s)")
    argument_parser.add_argument(
        "--batch-size", type=int, default=128, help="digits of all ranks in a step (%(default)s)"
    )
    argument_parser.add_argument("--width", type=int, default=width, help="channels or units of a layer (%(default)s)")
    if ways:
        argument_parser.add_argument("--only", choices=ways, help="one of the ways")
    return argument_parser


def environment(**variables: str) -> Dict[str, str]:
    """Return the environment of an example: one thread, this checkout, ``variables`` unless the user has set them."""
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    return {**variables, **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def title(way: str, ranks: int) -> str:
    """Return the title above the output of one run."""
    return f"\n--- {way}{way and ', '}{ranks} {'ranks' if ranks > 1 else 'process'} ---"


def busy(timeline: Path) -> float:
    """Return the seconds of a timeline during which at least one operation was under way."""
    events = [event for event in json.loads(timeline.read_text(encoding="utf-8")) if event.get("ph") == "X"]
    seconds, end = 0.0, 0.0
    for event in sorted(events, key=lambda event: event["ts"]):
        last = event["ts"] + event["dur"]
        seconds += max(0.0, last - max(end, event["ts"])) / 1e6
        end = max(end, last)
    return seconds


def run(
    script: str, way: str, ranks: int, given: argparse.Namespace, environ: Dict[str, str], timed: bool = False
) -> Dict[str, Any]:
    """Run an example, show its output, and return its results. If it fails, exit with its status.

    ``timed``: the example measures its communication itself. Otherwise it writes a timeline.
    """
    print(title(way, ranks), flush=True)
    launcher = [sys.executable, *(["-m", "ddl.launch", "-np", str(ranks)] if ranks > 1 else [])]
    with tempfile.TemporaryDirectory() as folder:
        results, timeline = Path(folder, "results.json"), Path(folder, "timeline.json")
        options = ["--epochs", str(given.epochs), "--batch-size", str(given.batch_size), "--width", str(given.width)]
        options += ["--json", str(results), *(["--timeline", str(timeline)] if ranks > 1 and not timed else [])]
        status = subprocess.call([*launcher, str(HERE / script), *options], env=environ)
        if status:
            sys.exit(status)
        answer: Dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
        if not timed:
            answer["communicating"] = busy(timeline) / answer["seconds"] if ranks > 1 else 0.0
    return {**answer, "way": way}


def show(
    runs: List[Dict[str, Any]],
    what: str = "training",
    communicating: str = "an average is waited for, or under way, also where the ranks compute meanwhile",
) -> None:
    """Print the table; ``what``: the digits that the loss is for; ``communicating``: what counts as communication."""
    width = max(len(run["way"]) for run in runs)
    print(f"\n{'way':<{width}}  ranks  {what + ' loss':>13}  test accuracy  images/s  communicating")
    for run in runs:
        print(
            f"{run['way']:<{width}}  {run['ranks']:5d}  {run['loss']:13.4f}  {run['accuracy']:13.1%}  "
            f"{run['images_per_s']:8.0f}  {run['communicating']:13.1%}"
        )
    print(f"(communicating: {communicating})")
    ranks, cores = runs[-1]["ranks"], len(os.sched_getaffinity(0))
    if ranks > cores:
        print(f"(there are only {cores} cores here for {ranks} ranks, so more ranks cannot be faster)")
