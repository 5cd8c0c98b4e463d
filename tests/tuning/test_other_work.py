"""Figures that were measured beside other programs are not kept; the ranks' own work does not count as others'."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddl.tuning.measure.other_work import Share, busy_hosts

ROOT = Path(__file__).resolve().parents[2]


def test_the_ranks_own_work_is_not_others() -> None:
    """Two hosts of one machine, in containers say, and one that others use."""
    quiet = [Share("m", "a", 4, 10.0, 31.0, 15.0), Share("m", "b", 4, 10.0, 31.0, 14.0)]
    used = [Share("n", "c", 2, 10.0, 20.0, 1.0)]
    assert busy_hosts(quiet) == []
    assert busy_hosts([*quiet, *used]) == ["host c (1.9 of its 2 cores)"]
    assert busy_hosts([Share("n", "c", 2, 10.0, 40.0, 1.0)]) == ["host c (2.0 of its 2 cores)"]  # clocks are not exact


@pytest.mark.processes
def test_a_table_that_was_measured_beside_other_work_is_not_kept(tmp_path: Path) -> None:
    table = tmp_path / "tuned.toml"
    line = [sys.executable, "-m", "ddl.tools", "tune", "-np", "2", "--sizes", "8", "--seconds", "1"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            ended = subprocess.run(
                [*line, "--output", str(table)], cwd="/", env=environ, capture_output=True, text=True, timeout=240
            )
            kept = subprocess.run([*line, "--output", str(table), "--even-if-busy"], cwd="/", env=environ, timeout=240)
        finally:
            other.kill()
    assert ended.returncode == 1 and "ddl tune: other programs have used host " in ended.stderr, ended.stderr
    assert "cores) while DDL measured, so the table is not kept; measure again" in ended.stderr
    assert "written to" not in ended.stdout
    assert kept.returncode == 0 and table.exists()
