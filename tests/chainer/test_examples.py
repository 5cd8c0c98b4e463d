"""Chainer's examples run: two ranks come to the loss of one process; demo and benchmark print their tables."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import ranks

pytest.importorskip("chainer_cases", reason="Chainer is not installed here")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def run_example(name, folder, *options):
    os.chdir(folder)
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [name, *options]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chainer_digits.py", "chainer_plain_digits.py"])
def test_two_ranks_come_to_what_one_process_does(name, tmp_path):
    results = []
    for size in (1, 2):
        path = tmp_path / f"{size}.json"
        options = ["--epochs", "4", "--width", "8", "--lr", "0.005", "--json", str(path)]
        ranks.run(size, run_example, name, str(tmp_path), *options, initialise=False)
        results.append(json.loads(path.read_text()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.json", "2.json"]  # and no log of Chainer's
    alone, two = results
    assert (alone["ranks"], two["ranks"]) == (1, 2)
    assert two["loss"] == pytest.approx(alone["loss"], rel=0.02)
    assert min(alone["accuracy"], two["accuracy"]) > 0.9
    assert min(alone["images_per_s"], two["images_per_s"]) > 0
    assert alone["communicating"] == 0 < two["communicating"] < 1


def output_of(*line):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    return subprocess.run([sys.executable, *line], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_demo_prints_its_table():
    done = output_of("examples/demo_chainer.py", "--only", "own loop", "--epochs", "2", "--width", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [text.split() for text in done.stdout.splitlines() if text.startswith("own loop ")]
    assert [row[2] for row in rows] == ["1", "2"]
    assert float(rows[0][3]) == pytest.approx(float(rows[1][3]), rel=0.02)
    assert rows[0][6] == "0.0%" and 0 < float(rows[1][6].rstrip("%")) < 100


@pytest.mark.slow
def test_benchmark_compares_with_naive(tmp_path):
    """It runs and finds the same weights; who is faster is not asked here."""
    options = ["--model", "digits", "--rounds", "1", "--json", str(tmp_path / "times.json")]
    done = output_of("-m", "benchmarks.frameworks.chainer_naive", *options)
    assert "weights" not in done.stdout and "ddl/naive" in done.stdout, done.stdout + done.stderr
    seconds = json.loads((tmp_path / "times.json").read_text())["seconds"]["digits"]
    assert {len(taken) for taken in seconds.values()} == {1} and len(seconds) == 5
