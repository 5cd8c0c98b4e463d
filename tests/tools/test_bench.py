"""``ddl bench`` for real, on two ranks; what it refuses, and what a wrong value does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ddl.tools.bench.values import COLLECTIVES
from ddl.tools.cli import main

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]

#: A sitecustomize that adds 1 to an element of what rank 1 gets from an all-reduce.
WRONG = """
import os
if os.environ.get("DDL_RANK") == "1":
    import ddl.api

    right = ddl.api.allreduce_

    def wrong(x, **options):
        result = right(x, **options)
        result[1] += 1
        return result

    ddl.api.allreduce_ = wrong
"""


def bench(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ddl.tools", "bench", *arguments]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT)]))}
    return subprocess.run(line, cwd="/", env=environ, capture_output=True, text=True, timeout=240)


@pytest.mark.few(1)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_table_and_figures(tmp_path: Path, collective: str):
    """The values are checked by the run itself."""
    target = tmp_path / "figures.json"
    ended = bench(collective, "-np", "2", "--sizes", "12,256K", "--seconds", "0.02", "--json", str(target))
    assert ended.returncode == 0, ended.stderr
    title, _, head, *rows = ended.stdout.splitlines()
    assert title == f"{collective} of float32, 2 ranks on 1 host"
    assert head.split()[:5] == ["size", "calls", "min", "median", "p99"] and len(rows) == 2
    assert rows[1].split()[:2] == ["256", "KiB"]
    written: Dict[str, Any] = json.loads(target.read_text())
    assert (written["collective"], written["ranks"]) == (collective, 2)
    for nbytes, figures in written["figures"].items():
        assert figures["calls"] >= 5 and 0 < figures["min"] <= figures["median"] <= figures["p99"]
        assert figures["algbw"] == pytest.approx(int(nbytes) / figures["median"] / 1e9)


def test_a_wrong_value_ends_with_1_and_says_where(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(WRONG)
    ended = bench("allreduce", "-np", "2", "--sizes", "8", path=str(tmp_path))
    assert ended.returncode == 1 and ended.stdout == ""
    assert "wrong value: rank 1, allreduce of 8 bytes, buffers 0, before timing: first wrong index 1: " in ended.stderr


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("a job of one rank does not communicate", ["allreduce", "-np", "1"]),
        ("--seconds 0: it must be", ["allreduce", "-np", "2", "--seconds", "0"]),
        ("numpy has no bfloat16", ["reducescatter", "-np", "2", "--dtype", "bfloat16"]),
        ("invalid choice: 'alreduce' (choose from", ["alreduce"]),
        ("a size of 0 bytes cannot be timed", ["allreduce", "--sizes", "0"]),
    ],
)
def test_bad_usage_ends_with_2(message: str, options: List[str], capsys: pytest.CaptureFixture[str]):
    """It is refused before a job is started."""
    try:
        status = main(["bench", *options])
    except SystemExit as end:  # by argparse
        status = end.code
    said = capsys.readouterr().err
    assert status == 2 and message in said, said
