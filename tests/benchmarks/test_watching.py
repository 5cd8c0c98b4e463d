"""``python -m benchmarks watching`` runs its jobs in turn, and compares them with the first setting."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_one_round(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    line = [sys.executable, "-m", "benchmarks", "watching", "--rounds", "1", "--seconds", "0.3"]
    line += ["--unrecorded", str(ROOT), "--json", str(figures)]  # here an ordinary build
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    settings = ["nothing is recorded", "recorded, as always", "with the page", "with the timeline", "with both"]
    lines = [text.strip() for text in done.stdout.splitlines()]
    assert [name for name in settings if any(text.startswith(name) for text in lines)] == settings
    seconds = json.loads(figures.read_text())["seconds"]
    assert list(seconds) == settings
    assert all(len(values) == 1 and values[0] > 0 for measured in seconds.values() for values in measured.values())
