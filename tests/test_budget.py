"""Slow tests are left out, with the reason, once their time is over; others run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

FILE = """
import pytest

@pytest.fixture
def costly():
    print("made something costly")

@pytest.mark.slow
def test_slow(costly):
    pass

def test_quick():
    pass
"""


@pytest.mark.processes
@pytest.mark.parametrize(("until", "outcome"), [("", "2 passed"), ("9e9", "2 passed"), ("1", "1 passed, 1 skipped")])
def test_slow_tests_begin_in_time_or_not_at_all(until: str, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(FILE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    env = {name: value for name, value in os.environ.items() if name != "SLOW_TESTS_UNTIL"}
    env.update({"PYTHONPATH": path}, **({"SLOW_TESTS_UNTIL": until} if until else {}))
    line = [sys.executable, "-m", "pytest", "-rs", "-s", "-p", "budget"]
    ended = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0 and outcome in ended.stdout, ended.stdout + ended.stderr
    left_out = "skipped" in outcome
    assert ("CI's time for such tests was over" in ended.stdout) == left_out
    assert ("made something costly" in ended.stdout) != left_out
