"""Slow tests run in the full tier only, and a test that takes long without being marked so fails, with advice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

HERE = Path(__file__).parent

FILE = """
import time, pytest, tiers

tiers.LIMIT = 0.05
tiers.slowness = lambda: {slowness}

@pytest.mark.slow
def test_slow():
    time.sleep(0.5)

def test_long():
    time.sleep(0.2)

def test_quick():
    pass
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "slowness", "outcome"),
    [
        (["--fast"], 1.0, "1 failed, 1 passed, 1 deselected"),
        (["--fast"], 40.0, "2 passed, 1 deselected"),
        ([], 1.0, "1 failed, 2 passed"),
        ([], 3.0, "3 passed"),
    ],
)
def test_tiers(options: List[str], slowness: float, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text(FILE.format(slowness=slowness))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    line = [sys.executable, "-m", "pytest", "-p", "tiers", *options]
    env = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert outcome in ended.stdout, ended.stdout + ended.stderr
    assert ("test_long took 0.2 s" in ended.stdout and "mark it with @pytest.mark.slow" in ended.stdout) == (
        "failed" in outcome
    )
