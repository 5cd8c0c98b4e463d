"""TensorFlow's examples run: two ranks come to the loss of one process, and the demo prints its table."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import ranks

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def run_example(name, *options):
    """Run it as a rank, which has imported TensorFlow already."""
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [name, *options]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tf_keras_digits.py", "tf_loop_digits.py", "tf1_session_digits.py"])
def test_two_ranks_come_to_what_one_process_does(name, tmp_path):
    results = []
    for size in (1, 2):
        path = tmp_path / f"{size}.json"
        options = ["--epochs", "3", "--width", "8", "--lr", "0.005", "--json", str(path)]
        ranks.run(size, run_example, name, *options, initialise=False)
        results.append(json.loads(path.read_text()))
    alone, two = results
    assert (alone["ranks"], two["ranks"]) == (1, 2)
    assert two["loss"] == pytest.approx(alone["loss"], rel=0.02)
    assert min(alone["accuracy"], two["accuracy"]) > 0.9
    assert min(alone["images_per_s"], two["images_per_s"]) > 0


@pytest.mark.slow
def test_demo_prints_its_table():
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    line = [sys.executable, "examples/demo_tensorflow.py", "--only", "TF1 session", "--epochs", "2", "--width", "8"]
    done = subprocess.run(
        line, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [text.split() for text in done.stdout.splitlines() if text.startswith("TF1 session ")]
    assert [row[2] for row in rows] == ["1", "2"]
    assert float(rows[0][3]) == pytest.approx(float(rows[1][3]), rel=0.02)
    assert rows[0][6] == "0.0%" and 0 < float(rows[1][6].rstrip("%")) < 100
