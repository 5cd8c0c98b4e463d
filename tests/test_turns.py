"""Beside a test that is alone no other runs, whichever workers they are given to; others do run at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import List, Tuple

import pytest

HERE = Path(__file__).parent

FILE = """
import time, pytest

def spend(mark):
    begin = time.monotonic()
    time.sleep(0.1)
    with open({log!r}, "a") as log:
        log.write(f"{{mark}} {{begin}} {{time.monotonic()}}\\n")

@pytest.mark.parametrize("n", range(3))
def test_any(n):
    spend("any")

@pytest.mark.alone
@pytest.mark.parametrize("n", range(2))
def test_alone(n):
    spend("alone")
"""


@pytest.mark.slow
@pytest.mark.processes
def test_nothing_runs_beside_what_is_alone(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    log = tmp_path / "log"
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text(FILE.format(log=str(log)))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    line = ["-m", "pytest", "-q", "-p", "turns", "-n", "4", "--dist", "load", f"--basetemp={tmp_path / 'base'}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))}
    line = [sys.executable, *line]
    ended = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0 and "20 passed" in ended.stdout, ended.stdout + ended.stderr
    spans: List[Tuple[float, float, str]] = []
    for mark, begin, end in (text.split() for text in log.read_text().splitlines()):
        spans.append((float(begin), float(end), mark))
    together = {(span[2], other[2]) for span, other in combinations(sorted(spans), 2) if other[0] < span[1]}
    assert together == {("any", "any")}
