"""Names of JAX that are not public: in one file, and one that is gone is told with both versions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GONE = """
import sys
import jax
from jax._src import clusters, dispatch
if sys.argv[1] == "module":
    del dispatch.apply_primitive
else:
    del clusters.ClusterEnv._cluster_types
import ddl_jax
"""


def test_one_file_imports_them():
    files = [path for path in (ROOT / "ddl_jax").rglob("*.py") if "jax._src" in path.read_text(encoding="utf-8")]
    assert [path.name for path in files] == ["_compat.py"]


@pytest.mark.slow
@pytest.mark.parametrize(("of", "name"), [("module", "apply_primitive"), ("class", "_cluster_types")])
def test_a_name_that_is_gone_is_told(of, name):
    import jax

    line = [sys.executable, "-c", GONE, of]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: ddl_jax does not know JAX {jax.__version__}: ") and name in last, done.stderr
    assert "pip install 'jax==" in last
