"""Theano's example: two ranks come to the loss of one process, also without a compiler; the demo prints its table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("theano.tensor", reason="Theano is not installed in this environment")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def run(*line, flags=""):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": path, "THEANO_FLAGS": os.environ["THEANO_FLAGS"] + flags}
    done = subprocess.run([sys.executable, *line], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("flags", "epochs", "width", "accuracy"),
    [("", 10, 64, 0.9), (",cxx=", 2, 32, 0.5)],
    ids=["compiled", "pure Python"],
)
def test_two_ranks_come_to_what_one_process_does(flags, epochs, width, accuracy, tmp_path):
    results = []
    for launcher in ([], ["-m", "ddl.launch", "-np", "2"]):
        path = tmp_path / f"{len(results)}.json"
        options = ["--epochs", str(epochs), "--width", str(width), "--json", str(path)]
        run(*launcher, "examples/theano_digits.py", *options, flags=flags)
        results.append(json.loads(path.read_text()))
    alone, two = results
    assert (alone["ranks"], two["ranks"]) == (1, 2)
    assert two["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert alone["accuracy"] == pytest.approx(two["accuracy"], abs=0.004) and alone["accuracy"] > accuracy
    assert alone["communicating"] == 0 < two["communicating"] < 1
    assert min(alone["images_per_s"], two["images_per_s"]) > 0


def test_demo_prints_its_table():
    printed = run("examples/demo_theano.py", "--epochs", "3", "--width", "64").splitlines()
    alone, two = (line.split()[1:] for line in printed if line.startswith("loop "))
    assert (alone[0], two[0]) == ("1", "2")
    assert float(alone[1]) == pytest.approx(float(two[1]), rel=1e-3)
    assert alone[4] == "0.0%" and 0 < float(two[4].rstrip("%")) < 100
