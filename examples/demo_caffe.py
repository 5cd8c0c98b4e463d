"""``make demo-caffe``: trains LeNet on the digits, from HDF5 and LMDB, with one process, then with two ranks.

The figures come from Caffe's log and from DDL's timeline.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict

import comparison

WAYS = ("hdf5", "lmdb")
HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare one process with several ranks on handwritten digits.")
    parser.add_argument("--ranks", type=int, default=2, help="how many ranks to start (%(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="iterations of the solver (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, help="digits of all ranks in a step (%(default)s)")
    parser.add_argument("--only", choices=WAYS, help="one form of the data")
    return parser.parse_args()


def figures(log: str) -> Dict[str, float]:
    """Return the results of the last test in a log of Caffe, and the seconds of an iteration, without the first."""
    lapses = re.findall(r"iter/s, (\S+)s/(\d+) iters\)", log)[1:]
    return {
        "accuracy": float(re.findall(r"accuracy = (\S+)", log)[-1]),
        "loss": float(re.findall(r"Test net output #\d+: loss = (\S+)", log)[-1]),
        "seconds": sum(float(lapse) for lapse, _ in lapses) / sum(int(iterations) for _, iterations in lapses),
    }


def run(way: str, ranks: int, given: argparse.Namespace) -> Dict[str, Any]:
    """Train in a temporary folder and show Caffe's log. If it fails, exit with its status."""
    print(comparison.title(way, ranks), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        writer = [sys.executable, str(HERE / "caffe_lenet" / "write_digits.py"), folder]
        subprocess.run([*writer, "--batch-size", str(given.batch_size // ranks)], check=True)
        solver = Path(folder, f"solver_{way}.prototxt")
        text = solver.read_text(encoding="utf-8").replace("test_interval: 200", f"test_interval: {given.steps}")
        solver.write_text(text.replace("max_iter: 200", f"max_iter: {given.steps}"), encoding="utf-8")
        timeline = Path(folder, "timeline.json")
        environ = {**comparison.environment(), "OPENBLAS_NUM_THREADS": "1", "GLOG_minloglevel": "0"}
        environ["DDL_TIMELINE"] = str(timeline) if ranks > 1 else ""
        line = [sys.executable, "-m", "ddl.launch", "-np", str(ranks), sys.executable, "-m", "ddl_caffe", "train"]
        done = subprocess.Popen(
            [*line, f"--solver={solver.name}"], cwd=folder, env=environ, stderr=subprocess.PIPE, text=True
        )
        assert done.stderr is not None
        log = []
        for text in done.stderr:
            log.append(text)
            if re.search(r"\] +(Iteration|Test net output)|Error|error|ddlrun", text):
                print(text, end="", flush=True)
        if done.wait():
            sys.exit(done.returncode)
        answer = figures("".join(log))
        share = comparison.busy(timeline) / (answer["seconds"] * given.steps) if ranks > 1 else 0.0
    speed = given.batch_size / answer["seconds"]
    return {**answer, "way": way, "ranks": ranks, "images_per_s": speed, "communicating": share}


def main() -> None:
    given = arguments()
    if given.batch_size % given.ranks or given.steps < 40:
        sys.exit(f"{given.batch_size} digits in a step must be shared by {given.ranks} ranks, in 40 steps or more")
    runs = [run(way, ranks, given) for way in ([given.only] if given.only else WAYS) for ranks in (1, given.ranks)]
    comparison.show(runs, "test")


if __name__ == "__main__":
    main()
