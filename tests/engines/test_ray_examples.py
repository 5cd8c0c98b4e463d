"""The examples for Ray, as a user runs them, and the programs of docs/ray.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List

import documents
import local_ray
import pytest

for needed in ("ray", "torch", "pandas", "pyarrow", "tensorboardX"):
    pytest.importorskip(needed, reason=f"{needed}, which the examples for Ray need, is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.processes]


def printed_by(words: List[str]) -> str:
    environ = {**os.environ, **local_ray.environ(), "RAY_ADDRESS": "local"}  # not that of a test at the same time
    done = subprocess.run(
        [sys.executable, *words], env=environ, capture_output=True, text=True, timeout=270, cwd=documents.ROOT
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


@pytest.mark.parametrize("example", ["ray_executor", "ray_train"])
def test_examples_train(example: str) -> None:
    (first, last) = re.findall(r"loss ([\d.]+) -> ([\d.]+)", printed_by([f"examples/{example}.py"]))[0]
    assert float(last) < float(first) / 10


@pytest.mark.parametrize(
    ("number", "line"), [(0, "[[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]"), (1, "[[10], [10]]")], ids=["run", "collective"]
)
def test_programs_of_the_page_run(number: int, line: str, tmp_path: Path) -> None:
    blocks = documents.python_blocks("docs/ray.md")
    assert len(blocks) == 3  # the last is a part of a program: tests/engines/test_ray_train.py has the like of it
    program = tmp_path / "program.py"
    program.write_text(blocks[number].replace("ray.init()", "ray.init(num_cpus=2, include_dashboard=False)"))
    assert line in printed_by([str(program)])
