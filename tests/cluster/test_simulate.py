"""benchmarks/predictions/simulate_check.py measures and compares. How far off it is here and now is not asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.alone
def test_the_check_runs(clusters_can_be_built: None, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "benchmarks.predictions.simulate_check", "--layouts", "two hosts"]
    options = ["--sizes", "256K,1M", "--rounds", "2", "--json", str(tmp_path / "times.json")]
    ended = subprocess.run([*line, *options], capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert "farthest off" in ended.stdout, ended.stderr
    layout = json.loads((tmp_path / "times.json").read_text())["layouts"]["two hosts"]
    assert [len(seconds) for seconds in layout["seconds"].values()] == [2, 2]
    (network,) = layout["machine"]["network"]
    assert network["size"] == 2 and network["burst_bytes"] == 125_000
    assert 50e6 < network["bandwidth_bytes_per_s"] < 250e6 and 0 < network["latency_s"] < 0.01
