"""Slow tests run in the full tier only. A test that takes long without being marked so is named, and does not fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

TESTS = Path(__file__).resolve().parent

FILE = """
import time, pytest, tiers

tiers.LIMIT = 0.05

@pytest.mark.slow
def test_slow():
    time.sleep(0.1)

@pytest.mark.parametrize("n", range(11))
def test_long(n):
    time.sleep(0.1)

def test_quick():
    pass

@pytest.mark.few(2)
@pytest.mark.parametrize("n", [0, 1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_many(n):
    pass
"""


@pytest.mark.few(1)
@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "outcome"), [(["--fast"], "14 passed, 4 deselected"), (["-k", "slow or many"], "6 passed")]
)
def test_tiers(options: List[str], outcome: str, tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text(FILE)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tiers"]\n')
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n slow\n few(n)\npythonpath = {TESTS} {TESTS.parent}\n")
    line = [sys.executable, "-m", "pytest", *options]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0 and outcome in ended.stdout, ended.stdout + ended.stderr
    if "--fast" in options:
        assert "\nover 0 s, which is long for `make test`, took 11 that are not marked slow:" in ended.stdout
        assert ended.stdout.count(" s  test_three.py::test_long[") == 10
    else:
        assert "marked slow" not in ended.stdout
