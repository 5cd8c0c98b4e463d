"""PyTorch and TensorFlow on four hosts: weights of the same bits everywhere, those of one process but for rounding."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

from lab import FOUR_HOSTS, Cluster

pytest.importorskip("sklearn")
ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
FOUR = ["-m", "ddl.launch", "--no-prefix", "-np", "4", "-H", "node1:1,node2:1,node3:1,node4:1"]
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def environ() -> Dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", **threads}


def result(output: str) -> List[float]:
    match = re.search(r"RESULT \d+ ([\d.]+) ([\d.]+) same=True", output)
    assert match is not None, output
    return [float(match[1]), float(match[2])]


@pytest.mark.parametrize("cluster", [FOUR_HOSTS], indirect=True)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_four_hosts_train_what_one_process_does(cluster: Cluster, framework: str) -> None:
    pytest.importorskip(framework)
    train = str(HERE / f"train_digits_{framework}.py")
    alone = subprocess.run(
        [sys.executable, train], env=environ(), cwd="/", capture_output=True, text=True, timeout=240, check=True
    )
    # One after the other: a compiler's work for the op is done then, and ranks do not wait for it.
    program = str(HERE / "tensorflow_everywhere.py") if framework == "tensorflow" else train
    done = cluster.run("node1", [sys.executable, *FOUR, program], env=environ(), cwd="/", timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "RESULT 4 " in done.stdout
    assert result(done.stdout) == pytest.approx(result(alone.stdout), rel=1e-4)
    if framework == "tensorflow":
        assert "DONE on 4 ranks, 4 hosts: " in done.stdout
