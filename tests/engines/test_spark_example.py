"""The example for Spark runs, as its first lines say, and recognises digits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import local_spark
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (pip install pyspark)")
for needed in ("torch", "sklearn"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)  # Java starts within minutes on a busy machine
def test_the_example_recognises_digits(tmp_path: Path) -> None:
    local_spark.need_java()
    environ = {
        **os.environ,
        **{"PYTHONPATH": str(local_spark.ROOT), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path)},
        "OMP_NUM_THREADS": "1",
    }
    line = [sys.executable, str(local_spark.ROOT / "examples/spark_digits.py"), "--work-dir", str(tmp_path)]
    done = subprocess.run(line, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    last = re.search(r"2 ranks: training loss (\S+) to (\S+), test accuracy (\S+)%", done.stdout)
    assert last and float(last[2]) < float(last[1]) and float(last[3]) > 90, done.stdout
    assert "epoch 12/12: loss" in done.stdout + done.stderr  # Spark shows its workers' output on stderr
