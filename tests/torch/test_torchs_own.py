"""What gloo passes of torch's own distributed tests, backend "ddl" passes: torchs_own.py.

They are 285, of which 195 need GPUs or several hosts, here and with gloo.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's own tests need it")
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.alone]

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests/torch/torchs_own.py"
#: What compares words of gloo, and why that is no difference in what is done.
WORDS = {
    "test_ddp_logging_data_cpu": "the name of the backend",
    "test_isend_autograd_profiler": "events that gloo calls after itself",
    "test_isend_torch_profiler": "events that gloo calls after itself",
    "test_monitored_barrier_gloo": "errors: 'failed to pass monitoredBarrier'",
    "test_monitored_barrier_gloo_rank_0_timeout": "errors: 'timed out in monitoredBarrier'",
    "test_monitored_barrier_gloo_subgroup": "errors: 'failed to pass monitoredBarrier'",
    "test_send_recv_any_source_autograd_profiler": "events that gloo calls after itself",
    "test_send_recv_any_source_torch_profiler": "events that gloo calls after itself",
    "test_send_recv_autograd_profiler": "events that gloo calls after itself",
    "test_send_recv_torch_profiler": "events that gloo calls after itself",
    "test_send_recv_with_tag_autograd_profiler": "events that gloo calls after itself",
    "test_send_recv_with_tag_torch_profiler": "events that gloo calls after itself",
}
FEWEST = 75  #: of them that must pass, so that nobody takes "all were skipped" for a success


@pytest.mark.timeout(1800)
def test_what_gloo_passes(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    line += ["--noconftest", str(ROOT / MODULE), *(f"--deselect={MODULE}::TestOwn::{name}" for name in WORDS)]
    roots = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": roots, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= FEWEST, done.stdout[-2000:]
