"""``make demo``: trains on the digits with one process, then with two ranks, and compares them in a table.

One process and two ranks make the same number of passes over the same digits, with one thread each. A shorter run shows
the speed of one process with as many threads as PyTorch uses by default, which may be the whole machine.
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

EPOCHS = 20
EXAMPLE = str(Path(__file__).with_name("torch_digits.py"))
LAUNCHER = [sys.executable, "-m", "ddl.launch", "-np"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare one process with several ranks on handwritten digits.")
    parser.add_argument("--ranks", type=int, default=2, help="how many ranks to start (%(default)s)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the digits (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="digits per rank and step (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights, order and distortions (%(default)s)")
    return parser.parse_args()


def run(title: str, command: List[str], given: argparse.Namespace, *, short: bool = False) -> Dict[str, Any]:
    """Run the example, show its output and return its results. If it fails, exit with its status.

    ``short``: a tenth of the epochs, with all threads.
    """
    options = ["--epochs", str(max(1, given.epochs // 10) if short else given.epochs), "--seed", str(given.seed)]
    options += ["--batch-size", str(given.batch_size)]
    print(f"\n--- {title} ---", flush=True)
    environ = dict(os.environ)
    environ.pop("OMP_NUM_THREADS", None)
    if not short:
        environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        status = subprocess.call([*command, EXAMPLE, "--json", str(results), *options], env=environ)
        if status:
            sys.exit(status)
        answer: Dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    return {**answer, "short": short}


def table(runs: List[Dict[str, Any]]) -> str:
    lines = ["ranks  threads each  test accuracy  images/s  waiting for others  speed-up"]
    for run in runs:
        gain = run["images_per_s"] / runs[0]["images_per_s"]
        waiting = f"{run['waiting_share']:.1%}" if run["ranks"] > 1 else "-"
        accuracy = "(short run)" if run["short"] else f"{run['accuracy']:.1%}"
        lines.append(
            f"{run['ranks']:5d}  {run['threads']:12d}  {accuracy:>13}  {run['images_per_s']:8.0f}  "
            f"{waiting:>18}  {gain:7.2f}x"
        )
    return "\n".join(lines)


def main() -> None:
    given = arguments()
    cores = len(os.sched_getaffinity(0))
    runs = [run("one process, one thread", [sys.executable], given)]
    if cores > 1:
        title = "one process, all threads: a tenth of the epochs, to see its speed"
        runs.append(run(title, [sys.executable], given, short=True))
    runs.append(run(f"{given.ranks} ranks, one thread each", [*LAUNCHER, str(given.ranks)], given))
    print("\n" + table(runs))
    print(
        f"({given.ranks} ranks take {given.ranks} times as many digits in a step: compare the accuracy, not the loss)"
    )
    if cores > 1:
        print("(short run: what one process makes of all cores, without DDL; too short for an accuracy)")
    if given.ranks > cores:
        print(f"(there are only {cores} cores here for {given.ranks} ranks, so more ranks cannot be faster)")


if __name__ == "__main__":
    main()
