"""The programs that ``python -m benchmarks gpu`` starts, and itself, on a machine without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from device.fake_cuda.build import library

from benchmarks.gpu.probe import QUESTIONS
from benchmarks.gpu.pytest_output import outcomes

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


def test_a_call_without_time_says_what_is_left(tmp_path: Path) -> None:
    name = f"test-{os.getpid()}"
    options = ["--rehearse", "--seconds", "0", "--name", name, "--also", str(tmp_path), "--blocks", "probe,training"]
    try:
        done = run_module("benchmarks", "gpu", *options)
    finally:
        kept = list((ROOT / "build" / "gpu").glob(f"gpu-{name}-*"))
        for path in kept:
            path.unlink()
    assert done.returncode == 75, done.stderr
    assert "17 steps are left: call it again" in done.stdout
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".txt", ".log"} and len(kept) == 2


def run_module(*line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(
        [sys.executable, "-m", *line], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=240
    )


@pytest.mark.few(4)
@pytest.mark.processes
@pytest.mark.parametrize("question", sorted(QUESTIONS))
def test_the_probe_asks(question: str, tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    done = run_module("benchmarks.gpu.probe", question, "--json", str(file), DDL_CUDA_LIBRARY=str(library()))
    assert done.returncode == 0, done.stderr
    answer = json.loads(file.read_text())
    assert answer.pop("fake") is True and answer
    expected: Dict[str, List[Any]] = {
        "shared": ["copied", True, True],
        "wait": [False, True, True],
        "free": [False, False, False, False, False, True],
        "depth": [1021, True, 511, True],
    }
    if question in expected:
        assert list(answer.values())[: len(expected[question])] == expected[question]
    if question == "wait":
        assert answer["results are right"]


def test_a_probe_without_a_driver_says_so() -> None:
    done = run_module("benchmarks.gpu.probe", "copies", DDL_CUDA_LIBRARY="libcuda-of-nobody.so")
    assert done.returncode == 1 and "libcuda-of-nobody.so cannot be loaded" in done.stderr


@pytest.mark.processes
@pytest.mark.slow
def test_all_reduces_are_compared_on_the_cpu(tmp_path: Path) -> None:
    steps = {
        "probe.copies": {"result": {"rates": {"both_down": 1e9, "both_up": 1e9}, "fake": False}},
        "probe.memory": {"result": {"bytes_per_second": 1e10}},
    }
    (tmp_path / "record.json").write_text(json.dumps({"steps": steps}))
    options = ["--device", "cpu", "--sizes", "8,64K", "--seconds", "0.05", "--json", str(tmp_path / "out.json")]
    job = ["ddl.launch", "-np", "2", "--no-prefix", sys.executable, "-m", "benchmarks.gpu.allreduce", *options]
    done = run_module(*job, "--rates", str(tmp_path / "record.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "out.json").read_text())
    assert facts["ranks"] == 2 and list(facts["sizes"]) == ["8", "65536"]
    figure = facts["sizes"]["65536"]
    assert figure["bounds"]["down"] == pytest.approx(2 * 65536 / 1e9)
    assert figure["share of the bound"] == pytest.approx(figure["bounds"]["all"] / figure["ddl"]["median"])
    assert {"ddl", "gloo", "host"} < set(figure) and figure["ddl"]["calls"] >= 3
    assert done.stdout.splitlines()[0].split()[:4] == ["size", "ddl", "gloo", "host"]


@pytest.mark.processes
@pytest.mark.slow
def test_a_real_driver_has_a_twin_of_the_fake() -> None:
    """Its library is the fake's here, but nothing controls it, and there is no ledger."""
    files = [f"tests/device/test_{name}.py" for name in ("arrays", "works", "fake_memory")]
    chosen = ["-k", "other_calls_have or both_arrays or arrivals or registration"]
    line = ["pytest", "-v", "-p", "no:cacheprovider", "--driver", "real", "--cuda-library", str(library())]
    done = run_module(*line, *chosen, *files)
    assert done.returncode == 0, done.stdout
    found_out = outcomes(done.stdout)
    assert found_out["passed"] == 5 and not found_out["failed"]
    assert found_out["skipped"] == {
        "only the fake driver can do this: it counts calls, and there is an older driver": 1,
        "only the fake driver can do this: it is what is tested here": 1,
    }
