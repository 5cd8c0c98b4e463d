"""LeNet learns the digits through HDF5 and through LMDB; the demo's two ranks come to the figures of one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("caffe")
pytest.importorskip("sklearn")
pytest.importorskip("lmdb")

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes


@pytest.mark.slow
def test_demo_prints_its_table():
    line = [sys.executable, "examples/demo_caffe.py", "--steps", "80", "--batch-size", "64"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [text.split() for text in done.stdout.splitlines() if text[:4] in ("hdf5", "lmdb")]
    assert [row[:2] for row in rows] == [["hdf5", "1"], ["hdf5", "2"], ["lmdb", "1"], ["lmdb", "2"]]
    for alone, two in (rows[:2], rows[2:]):
        assert float(alone[2]) == pytest.approx(float(two[2]), rel=1e-2)
        assert min(float(row[3].rstrip("%")) for row in (alone, two)) > 80
        assert alone[5] == "0.0%" and 0 < float(two[5].rstrip("%")) < 100


def test_the_demo_refuses_what_it_cannot_share():
    line = [sys.executable, "examples/demo_caffe.py", "--ranks", "3"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1 and "must be shared by 3 ranks" in done.stderr
