"""The examples run: alone and under ddlrun, to the accuracy they promise, and a wrong option ends with its status."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_groups import require

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("tqdm")

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ["examples/torch_digits.py", "--epochs", "1", "--width", "8"]
pytestmark = pytest.mark.processes


def run(*command, status=0):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def on_two_ranks(*command, status=0):
    return run("-m", "ddl.launch", "-np", "2", *command, status=status)


@pytest.mark.slow
def test_digits_alone(tmp_path):
    done = run(*DIGITS, "--json", str(tmp_path / "out"))
    result = json.loads((tmp_path / "out").read_text())
    assert result["ranks"] == 1
    assert f"test accuracy {result['accuracy']:.2%}" in done.stdout


@pytest.mark.slow
def test_digits_on_two_ranks_are_recognised(tmp_path):
    done = on_two_ranks("examples/torch_digits.py", "--json", str(tmp_path / "out"))
    result = json.loads((tmp_path / "out").read_text())
    assert result["ranks"] == 2
    assert result["accuracy"] >= 0.98
    assert 0 < result["waiting_share"] < 1
    assert done.stdout.count("test accuracy") == 1  # rank 0 speaks for all


@pytest.mark.slow
def test_text_on_two_ranks_is_learned(tmp_path):
    on_two_ranks("examples/torch_text.py", "--epochs", "1", "--steps", "80", "--json", str(tmp_path / "out"))
    result = json.loads((tmp_path / "out").read_text())
    assert 2 < result["unigram_entropy"] < math.log(96)
    assert result["loss"] < 0.85 * result["unigram_entropy"]


@pytest.mark.slow
def test_text_alone():
    done = run("examples/torch_text.py", "--epochs", "2", "--steps", "3", "--width", "16", "--layers", "1")
    assert "epoch  2/2: loss" in done.stdout


@pytest.mark.slow
def test_large_batches_resume_in_the_middle_of_an_epoch_on_more_ranks(tmp_path):
    line = ["examples/torch_large_batch.py", "--width", "16", "--checkpoint", str(tmp_path / "digits.pt")]
    first = run("-m", "ddl.launch", "-np", "1", *line, "--stop-after", "100")
    assert "after 100 steps, in epoch 4 after 512 digits" in first.stdout  # 23 batches of 64 an epoch
    second = on_two_ranks(*line)
    (accuracy,) = re.findall(r"after 188 steps, in epoch 20 after 0 digits: .* test accuracy ([\d.]+)%", second.stdout)
    assert float(accuracy) > 93  # (1437 - 512) / 128 steps, and then 15 epochs of 12


def accuracy(example):
    (percent,) = re.findall(r"test accuracy ([\d.]+)%", on_two_ranks(f"examples/{example}.py").stdout)  # rank 0 only
    return float(percent)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["torch_ddp", "torch_fsdp"])
def test_torch_distributed_learns_on_two_ranks(example):
    assert accuracy(example) > 93


@pytest.mark.slow
def test_a_rank_of_the_elastic_example_is_killed():
    """What docs/elastic.md tells its reader to do."""
    command = [sys.executable, "-m", "ddl.launch", "-np", "3", "--min-np", "1", "examples/torch_elastic.py"]
    command += ["--epochs", "3", "--pause", "0.02"]
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            lines.append(line)
            if line.startswith("[0] epoch 0:"):  # rank 0 itself
                process = next(int(said.split()[2]) for said in lines if said.startswith("[0] process"))
                os.kill(process, signal.SIGKILL)
    output = "".join(lines)
    assert job.returncode == 0, output
    assert "rank 0 of 2 since step" in output and "killed by signal 9 (SIGKILL); 2 ranks are left" in output
    assert "each of 1797 digits was used exactly once in every epoch" in output


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["lightning", "accelerate", "transformers"])
def test_trainers_learn_on_two_ranks(trainer):
    require(trainer)
    assert accuracy(f"torch_{trainer}") > 93


def test_the_lines_that_torch_md_adds_are_those_that_torch_ddp_marks():
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "torch.md").read_text(), re.DOTALL)
    added = [line[1:].strip() for line in diff.splitlines() if line.startswith("+")]
    script = (ROOT / "examples" / "torch_ddp.py").read_text().splitlines()
    marked = [line.split("  #")[0].strip() for line in script if "# " in line and "(DDL)" in line]
    assert added == marked


@pytest.mark.parametrize("trainer", ["lightning", "accelerate", "transformers", "deepspeed"])
def test_the_lines_that_the_examples_of_trainers_mark_are_in_trainers_md(trainer):
    page = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    added = [line[1:] for diff in re.findall(r"```diff\n(.*?)```", page, re.DOTALL) for line in diff.splitlines()]
    script = (ROOT / "examples" / f"torch_{trainer}.py").read_text(encoding="utf-8").splitlines()
    marked = [line.split("  #")[0].strip().rstrip(",") for line in script if "# " in line and "(DDL)" in line]
    assert len(marked) > 0 and all(any(mark in line for line in added) for mark in marked)


@pytest.mark.slow
def test_a_wrong_option_ends_the_job_with_its_status():
    done = on_two_ranks("examples/torch_digits.py", "--epoks", "3", status=2)
    assert "unrecognized arguments: --epoks 3" in done.stderr
    assert "argument --epochs: 0 is not 1 or more" in run("examples/torch_text.py", "--epochs", "0", status=2).stderr


@pytest.mark.slow
def test_demo_prints_its_table():
    lines = run("examples/demo.py", "--epochs", "1").stdout.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("ranks"))
    rows = [line.split() for line in lines[head + 1 :] if line.endswith("x")]
    assert [rows[0][:2], rows[-1][:2]] == [["1", "1"], ["2", "1"]]
    assert rows[0][-1] == "1.00x"
