"""What ``make demo-tensorflow`` runs: the digits by each of TensorFlow's ways, on one process, then on two ranks.

One process and two ranks take the same steps, so they come to the same loss, up to rounding; with one thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

EXAMPLES = {"Keras fit": "tf_keras_digits.py", "own loop": "tf_loop_digits.py", "TF1 session": "tf1_session_digits.py"}
HERE = Path(__file__).resolve().parent
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare one process with several ranks on handwritten digits.")
    parser.add_argument("--ranks", type=int, default=2, help="how many ranks to start (%(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the digits (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, help="digits of all ranks in a step (%(default)s)")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (%(default)s)")
    parser.add_argument("--only", choices=EXAMPLES, help="one of the ways")
    return parser.parse_args()


def busy(timeline: Path) -> float:
    """Return the seconds in which one operation or more was waited for, of what a timeline shows."""
    events = [event for event in json.loads(timeline.read_text(encoding="utf-8")) if event.get("ph") == "X"]
    seconds, end = 0.0, 0.0
    for event in sorted(events, key=lambda event: event["ts"]):
        last = event["ts"] + event["dur"]
        seconds += max(0.0, last - max(end, event["ts"])) / 1e6
        end = max(end, last)
    return seconds


def run(way: str, ranks: int, given: argparse.Namespace) -> Dict[str, Any]:
    """Run the example, showing what it prints; end with its status if it fails."""
    print(f"\n--- {way}, {ranks} {'ranks' if ranks > 1 else 'process'} ---", flush=True)
    launcher = [sys.executable, *(["-m", "ddl.run", "-np", str(ranks)] if ranks > 1 else [])]
    environ = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **ONE_THREAD}
    with tempfile.TemporaryDirectory() as folder:
        results, timeline = Path(folder, "results.json"), Path(folder, "timeline.json")
        options = ["--epochs", str(given.epochs), "--batch-size", str(given.batch_size), "--width", str(given.width)]
        options += ["--json", str(results)]
        options += ["--timeline", str(timeline)] if ranks > 1 else []
        status = subprocess.call([*launcher, str(HERE / EXAMPLES[way]), *options], env=environ)
        if status:
            sys.exit(status)
        answer: Dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
        share = busy(timeline) / answer["seconds"] if ranks > 1 else 0.0
    return {**answer, "way": way, "communicating": share}


def table(runs: List[Dict[str, Any]]) -> str:
    lines = ["way          ranks  training loss  test accuracy  images/s  communicating"]
    for one in runs:
        lines.append(
            f"{one['way']:<11}  {one['ranks']:5d}  {one['loss']:13.4f}  {one['accuracy']:13.1%}  "
            f"{one['images_per_s']:8.0f}  {one['communicating']:13.1%}"
        )
    return "\n".join(lines)


def main() -> None:
    given = arguments()
    ways = [given.only] if given.only else list(EXAMPLES)
    runs = [run(way, ranks, given) for way in ways for ranks in (1, given.ranks)]
    print("\n" + table(runs))
    print("(communicating: an average is waited for, or under way, also where the ranks compute meanwhile)")
    cores = len(os.sched_getaffinity(0))
    if given.ranks > cores:
        print(f"(there are only {cores} cores here for {given.ranks} ranks, so more ranks cannot be faster)")


if __name__ == "__main__":
    main()
