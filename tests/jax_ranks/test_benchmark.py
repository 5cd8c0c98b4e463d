"""The benchmark of JAX's collectives runs, checks its results and prints its table. Who is faster is not asked here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_it_prints_a_row_for_each_collective_and_size(tmp_path):
    options = ["--sizes", "4,64K", "--rounds", "2", "--json", str(tmp_path / "times.json")]
    line = [sys.executable, "-m", "benchmarks.frameworks.jax_collectives", *options]
    environ = {name: value for name, value in os.environ.items() if name != "MPITRAMPOLINE_LIB"}
    done = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, head, *rows = done.stdout.splitlines()
    assert re.match(r"2 ranks, JAX \d.* cores ", first), first
    assert re.split(r"  +", head.strip()) == ["collective", "each rank has", "ddl", "gloo", "ddl/gloo"]
    cells = [re.split(r"  +", row.strip()) for row in rows]
    sizes = {"psum": ["4 B", "64 KiB"], "psum_scatter": ["8 B", "64 KiB"]}  # that is divided by two
    wanted = [
        [name, size]
        for name in ("psum", "all_gather", "psum_scatter", "ppermute")
        for size in sizes.get(name, sizes["psum"])
    ]
    assert [row[:2] for row in cells] == wanted
    assert all(re.fullmatch(r"[\d.]+ (ns|us|µs|ms|s)", cell) for row in cells for cell in row[2:4]), rows
    assert all(re.fullmatch(r"\d+\.\d\d", row[4]) for row in cells), rows
    record = json.loads((tmp_path / "times.json").read_text())
    assert {len(taken) for by_kind in record["seconds"].values() for taken in by_kind.values()} == {2}
    assert len(record["seconds"]) == len(rows) and record["ranks"] == 2
