"""``python -m benchmarks targets``: bounds, verdicts and tables without a process, and one short run that is real."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any, Dict

import pytest

from benchmarks.targets import bounds, connections, cut, plans, rows, timed
from benchmarks.targets.rows import Row
from ddl.tools.bench.figures import Sample

ROOT = Path(__file__).resolve().parents[2]
CASES = {case.target: case for case in timed.CASES}
MIB32 = 32 << 20


def test_a_ring_of_wires_takes_what_each_host_must_send():
    # 4 hosts: 3/2 of 1 MB, which is 12 Mbit
    assert bounds.ring_seconds(10**6, 4, 10**9) == pytest.approx(12e-3)
    assert bounds.ring_seconds(10**6, 2, 10**9) == pytest.approx(8e-3)
    assert 1 < bounds.TOKEN_BUCKETS < bounds.ETHERNET < 1.07


@pytest.mark.parametrize(
    ("target", "nbytes", "medians", "ratio", "met"),
    [
        ("a", 10**6, {"ddl": 12.5e-3}, 12.5 / 12, True),
        ("a", 10**6, {"ddl": 12.7e-3}, 12.7 / 12, False),
        ("b", 10**6, {"ddl": 4.1e-3, "ddl one rail": 8.2e-3}, 2, True),
        ("b", 10**6, {"ddl": 5e-3, "ddl one rail": 8e-3}, 1.6, False),
        ("c", 10**6, {"ddl": 6.8e-3, "ddl one rail": 8e-3}, 6.4 / 6.8 * 1514 / 1448, True),
        ("c", 10**6, {"ddl": 7.1e-3, "ddl one rail": 8e-3}, 6.4 / 7.1 * 1514 / 1448, False),
        ("d", 10**6, {"ddl": 0.04, "ddl ring": 0.06}, 1.5, True),
        ("d", 10**6, {"ddl": 0.04, "ddl ring": 0.05}, 1.25, False),
    ],
)
def test_verdicts_over_a_rate(target: str, nbytes: int, medians: Dict[str, float], ratio: float, met: bool):
    case = CASES[target]
    (row,) = case.judge(case, nbytes, {**medians, "gloo": 1.0, "mpich": 2.0, "openmpi": 3.0})
    assert row.ratio == pytest.approx(ratio) and row.met is met
    assert (row.target, row.ours, row.gloo, row.mpi, row.mpi_name) == (target, medians["ddl"], 1.0, 2.0, "mpich")
    assert row.bound is not None and row.bound < medians["ddl"]


def test_verdicts_of_small_operations_are_about_the_others_that_are_there():
    case = CASES["e"]
    over_gloo, over_mpi = case.judge(case, 8, {"ddl": 1e-4, "gloo": 1e-3, "mpich": 9e-5, "openmpi": 2e-4})
    assert (over_gloo.ratio, over_gloo.met) == (pytest.approx(0.1), True)
    assert (over_mpi.ratio, over_mpi.met, over_mpi.mpi_name) == (pytest.approx(1 / 0.9), False, "mpich")
    assert [row.of for row in case.judge(case, 8, {"ddl": 1e-4, "gloo": 1e-3})] == ["gloo"]


def test_a_miss_is_explained_by_what_was_measured():
    samples = {"ddl": {10**6: [Sample(0, [12e-3, 14e-3, 16e-3], cpu=21e-3, calls=3)]}}
    measured = timed.CaseResult(samples, stream={10**6: 8e-3})
    (row,) = timed.rows(CASES["a"], [10**6], measured)
    assert not row.met
    assert "one TCP stream between two of the hosts takes 8.00 ms (1000 Mb/s)" in row.note
    assert "DDL used 0.50 of" in row.note and "stolen" in row.note
    samples["ddl"][10**6][0].seconds = [12e-3]
    (row,) = timed.rows(CASES["a"], [10**6], measured)
    assert row.met and "stream" not in row.note


def test_a_cut_must_leave_the_bits():
    seen = [{"whole": 0.5, "cut": 1.5, "same": True}, {"whole": 0.5, "cut": 2.5, "same": True}]
    good = cut.row(MIB32, seen)
    assert good.met and good.ours == 2.0 and "1.50 s longer (at most 2.00 s)" in good.note
    assert not cut.row(MIB32, [*seen, {**seen[0], "same": False}]).met


def test_plans_are_built_as_the_jobs_chose_them_and_proved():
    two_racks = {"hosts": [[0, 1], [2, 3], [4, 5], [6, 7]], "dimensions": "2x2x2", "algorithm": ""}
    flat = {**two_racks, "dimensions": "", "algorithm": "ring"}
    assert plans.chosen(two_racks, MIB32)[1].algorithm == "multiring"
    assert plans.chosen(flat, MIB32)[1].algorithm == "ring"
    row = plans.row([(two_racks, [8, MIB32]), (two_racks, [MIB32]), (flat, [MIB32])])
    assert row.met and row.ours == 3 * 8 and "multiring 2x2x2" in row.note


def counted(large: int) -> Dict[str, Any]:
    """What ranks with ``large`` connections to each neighbour, and one for each small one, would write."""
    results = {}
    for dimensions in (*connections.FEW, *connections.MANY):
        ranks = prod(map(int, dimensions.split("x")))
        layout = {"hosts": [[rank] for rank in range(ranks)], "dimensions": dimensions, "algorithm": ""}
        near = [connections.neighbours(layout, nbytes) for nbytes in (connections.SMALL, connections.LARGE)]
        results[dimensions] = [{"connections": near[0] + large * near[1], "layout": layout}]
    return results


def test_connections_may_grow_with_dimensions_only():
    results = counted(4)
    assert [row.ours for row in connections.rows(results)] == [14, 22, 30]
    assert all(row.met for row in connections.rows(results))
    results["8x8"][0]["connections"] += 1
    assert [row.met for row in connections.rows(results)] == [True, False, True]


ROW = Row("a", "4 hosts", 1.25, "bound", 1.05, ours=0.5, gloo=1.0, mpi=0.75, mpi_name="mpich", bound=0.4, note="busy")


def test_the_table_says_everything_and_comes_back_from_json():
    text = rows.text([ROW, dataclasses.replace(ROW, ratio=1.0, note="", mpi=None, mpi_name="")])
    head, first, second, _, note = text.splitlines()
    assert head.split()[-4:] == ["bound", "ratio", "wanted", "met"]
    assert first.split()[-9:] == "(mpich) 400 ms 1.250 x bound at most 1.05 NO".split()[-9:]
    assert second.split()[-1] == "yes" and note == "a, 4 hosts: busy"
    written = json.loads(json.dumps({"targets": {"a": {"rows": [{**dataclasses.asdict(ROW), "met": ROW.met}]}}}))
    assert rows.of_json(written) == [ROW]


def test_the_table_goes_between_its_marks_of_a_document():
    document = f"before\n{rows.BEGIN}\nold\n{rows.END}\nafter\n"
    once = rows.insert(document, rows.markdown([ROW]))
    assert once.startswith("before\n") and once.endswith("\nafter\n") and "old" not in once
    assert "| a | 4 hosts | 500 ms | 1.00 s | 750 ms (mpich) | 400 ms | 1.250 x bound | at most 1.05 | NO |" in once
    assert rows.insert(once, rows.markdown([ROW])) == once
    with pytest.raises(ValueError, match="it has no lines"):
        rows.insert("before\nafter\n", "table")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "benchmarks", "targets", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, cwd="/", env=environ, capture_output=True, text=True, timeout=240)


@pytest.mark.few(2)
@pytest.mark.processes
@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("is not some of a,b,c,d,e,f,g,h", ["--only", "a,z"]),
        ("not a multiple of 32 bytes", ["--size", "1001"]),
        ("g proves the plans that a to f ran", ["--only", "g"]),
        ("there is no directory /no/such", ["--json", "/no/such/file.json"]),
        ("it has no lines", ["--document", str(ROOT / "README.md")]),
    ],
)
def test_bad_usage_ends_with_2(message: str, options: Any):
    ended = bench(*options)
    assert ended.returncode == 2 and message in ended.stderr, ended.stderr


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.alone
def test_a_short_run(clusters_can_be_built: None, tmp_path: Path):
    """Two targets and the proof of their plans: what is written, and that it is judged; not how fast anything was."""
    target, document = tmp_path / "targets.json", tmp_path / "targets.md"
    document.write_text(f"{rows.BEGIN}\n{rows.END}\n")
    who = ["--openmpi", "/no/such", "--mpich", "/no/such", "--rounds", "1", "--seconds", "0.01"]
    ended = bench("--only", "b,f,g", *who, "--json", str(target), "--document", str(document))
    assert ended.returncode in (0, 1), ended.stderr
    written = json.loads(target.read_text())["targets"]
    assert sorted(written) == ["b", "f", "g"]
    two_rails, lost, proved = (Row(**{k: v for k, v in written[n]["rows"][0].items() if k != "met"}) for n in "bfg")
    assert two_rails.ours and two_rails.bound and two_rails.ratio > 0 and two_rails.mpi is None
    assert written["b"]["left_out"]["mpich"] == "/no/such has no bin/mpiexec"
    assert lost.met and lost.ours is not None and lost.ours > written["f"]["cuts"][0]["whole"]
    assert proved.met and proved.ours == 2
    missed = [row for row in (two_rails, lost, proved) if not row.met]
    assert ended.returncode == bool(missed) and ("missed: " in ended.stderr) == bool(missed)
    assert document.read_text() == rows.insert(document.read_text(), rows.markdown([two_rails, lost, proved]))
