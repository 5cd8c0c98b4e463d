"""``python -m benchmarks`` and ``ddl bench`` for real: short runs on two ranks, and what ends with 1 or 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

import ddl
from benchmarks import native
from ddl.tools.bench.values import COLLECTIVES

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]

#: A contestant whose sums are right until ``WRONG_FROM`` calls were made, then wrong on rank 1 in one element.
PLUGIN = """
import ddl
from benchmarks.collectives.libraries import Ddl, BufferSet

class Wrong(Ddl):
    calls = 0

    def slot(self, work, root):
        right = super().slot(work, root)

        def run():
            right.run()
            Wrong.calls += 1
            if self.rank == 1 and Wrong.calls > WRONG_FROM:
                right.source[1] += 1

        return BufferSet(right.source, run, right.result, root)

def library():
    return Wrong()
"""


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "benchmarks", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, cwd="/", env=environ, capture_output=True, text=True, timeout=240)


def needs_compiler(program: str) -> None:
    try:
        native.compiled(program)
    except native.Unavailable as reason:
        pytest.skip(str(reason))


QUICK = ["--rounds", "1", "--seconds", "0.02"]


@pytest.mark.slow
def test_a_run_prints_a_table_and_writes_everything(tmp_path: Path):
    target = tmp_path / "figures.json"
    who = ["ddl", "ddl-private", *(["ddl-prepared"] if hasattr(ddl.Communicator, "prepare_allreduce") else [])]
    ended = bench("allreduce", "--sizes", "8,256K", "--contestants", ",".join(who), *QUICK, "--json", str(target))
    assert ended.returncode == 0, ended.stderr
    first, about, *_ = ended.stdout.splitlines()
    assert first == "allreduce of float32, sum, in place, 2 ranks on one host"
    assert "cores" in about and "256 KiB" in ended.stdout and "bus GB/s" in ended.stdout
    written: Dict[str, Any] = json.loads(target.read_text())
    assert list(written["figures"]) == who and set(written["versions"]) == set(who)
    assert written["command"][:4] == ["python", "-m", "benchmarks", "allreduce"] and written["machine"]["cores"] >= 1
    for name in who:
        for nbytes in ("8", str(256 << 10)):
            figures = written["figures"][name][nbytes]
            assert 0 < figures["min"] <= figures["median"] <= figures["p99"] <= figures["quantiles"]["1"]
            assert figures["busbw"] == pytest.approx(int(nbytes) / figures["median"] / 1e9)
            assert figures["cpu_per_gb"] > 0 and len(figures["round_medians"]) >= 1
            assert sum(sample["calls"] for sample in written["samples"][name][nbytes]) >= figures["calls"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "dtype"),
    [*((collective, "float32") for collective in COLLECTIVES[1:]), ("allreduce", "bfloat16"), ("allreduce", "float16")],
)
def test_ddl_and_the_limit_in_every_collective(collective: str, dtype: str):
    """The values are checked by the run itself, on three ranks, so that shares are not halves."""
    needs_compiler("limit")
    options = ["--sizes", "100,300K", "--ranks", "3", "--dtype", dtype, "--contestants", "ddl,limit"]
    ended = bench(collective, *options, *QUICK)
    assert ended.returncode == 0, ended.stderr
    assert "ddl of limit" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("wrong_from", "when"), [(0, "buffers 0, before timing"), (60, "the last timed call")])
@pytest.mark.parametrize("size", ["8", "256K"])
def test_a_wrong_value_ends_with_1_and_says_where(tmp_path: Path, wrong_from: int, when: str, size: str):
    plugin = tmp_path / "wrong.py"
    plugin.write_text(PLUGIN.replace("WRONG_FROM", str(wrong_from)))
    contestants = ["--contestants", f"ddl,{plugin}"]
    # 0.05 s: more than 60 calls of either size, so that the second case is found by the check at the end alone
    ended = bench("allreduce", "--sizes", size, *contestants, "--rounds", "1", "--seconds", "0.05")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    nbytes = 8 if size == "8" else 256 << 10
    assert f"wrong value: rank 1, allreduce of {nbytes} bytes, {when}: first wrong index 1: " in ended.stderr
    assert "wrong ended with status" in ended.stderr and ended.stdout == ""


@pytest.mark.slow
def test_a_floor_that_is_not_reached_ends_with_1(tmp_path: Path):
    plugin = tmp_path / "same.py"
    plugin.write_text("from benchmarks.collectives.libraries import Ddl\nlibrary = Ddl\n")
    options = ["--sizes", "64K", "--contestants", f"ddl,{plugin}", *QUICK]
    ended = bench("allreduce", *options, "--floor", "1e6")  # however disturbed one of the two was
    assert ended.returncode == 1 and "64 KiB: same / ddl is" in ended.stderr, ended.stderr
    assert "best peer / ddl" in ended.stdout


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("'nobody' is none of ddl,", ["--contestants", "ddl,nobody"]),
        (
            "--contestants openmpi: /no/such has no bin/mpiexec",
            ["--contestants", "ddl,openmpi", "--openmpi", "/no/such"],
        ),
        ("--subject ddl does not take part", ["--contestants", "ddl-private"]),
        ("its allreduce has no float16", ["--contestants", "ddl,mpich", "--dtype", "float16"]),
        ("--rate shapes what goes", ["--rate", "1gbit"]),
        ("there is no directory /no/such", ["--json", "/no/such/file.json"]),
        ("--ranks 0", ["--ranks", "0"]),
    ],
)
def test_bad_usage_ends_with_2(message: str, options: List[str]):
    ended = bench("allreduce", *options)
    assert ended.returncode == 2 and message in ended.stderr, ended.stderr


@pytest.mark.slow
def test_two_hosts_of_its_own_and_nothing_left_of_them(clusters_can_be_built: None, tmp_path: Path):
    needs_compiler("pump")
    target = tmp_path / "hosts.json"
    options = ["--hosts", "2", "--rate", "1gbit", "--sizes", "8,1M", "--contestants", "ddl,limit", *QUICK]
    ended = bench("allreduce", *options, "--json", str(target))
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(target.read_text())["figures"]
    for name in ("ddl", "limit"):  # 1 MiB over 1 Gb/s: 8.4 ms less a burst of 128 KiB; unshaped it would take 1 ms
        assert 6e-3 < figures[name][str(1 << 20)]["median"]
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(target) not in left


@pytest.mark.slow
def test_a_picture_is_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "figures.png"
    ended = bench("broadcast", "--sizes", "8,256K", "--contestants", "ddl,ddl-private", *QUICK, "--plot", str(target))
    assert ended.returncode == 0, ended.stderr
    assert target.read_bytes().startswith(b"\x89PNG") and target.stat().st_size > 10_000


def test_help_names_every_kind():
    ended = bench("--help")
    assert ended.returncode == 0
    for kind in (*COLLECTIVES, "training"):
        assert kind in ended.stdout
    assert "--limit-floor" in bench("allreduce", "--help").stdout
