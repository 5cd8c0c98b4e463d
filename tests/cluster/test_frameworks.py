"""TensorFlow on four hosts: weights of the same bits everywhere, and up to rounding those of one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

from ddl.tools.desk import FOUR_HOSTS, Cluster

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")
ROOT = Path(__file__).resolve().parents[2]
TRAIN = str(Path(__file__).with_name("train_digits_tensorflow.py"))
EVERYWHERE = str(Path(__file__).with_name("tensorflow_everywhere.py"))
FOUR = ["-m", "ddl.run", "--no-prefix", "-np", "4", "-H", "node1:1,node2:1,node3:1,node4:1"]
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(200)]


def environ() -> Dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", **threads}


def result(output: str) -> List[float]:
    found = re.search(r"RESULT \d+ ([\d.]+) ([\d.]+) same=True", output)
    assert found is not None, output
    return [float(found[1]), float(found[2])]


@pytest.mark.parametrize("cluster", [FOUR_HOSTS], indirect=True)
def test_four_hosts_train_what_one_process_does(cluster: Cluster) -> None:
    alone = subprocess.run(
        [sys.executable, TRAIN], env=environ(), cwd="/", capture_output=True, text=True, timeout=90, check=True
    )
    # One after the other: a compiler's work for the op is done then, and ranks do not wait for it.
    done = cluster.run("node1", [sys.executable, *FOUR, TRAIN], env=environ(), cwd="/", timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "RESULT 4 " in done.stdout
    assert result(done.stdout) == pytest.approx(result(alone.stdout), rel=1e-4)


@pytest.mark.parametrize("cluster", [FOUR_HOSTS], indirect=True)
def test_what_two_ranks_do_four_hosts_do(cluster: Cluster) -> None:
    done = cluster.run("node1", [sys.executable, *FOUR, EVERYWHERE], env=environ(), cwd="/", timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "DONE on 4 ranks, 4 hosts: " in done.stdout
