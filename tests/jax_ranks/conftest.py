"""JAX for its tests: skipped, with the reason, where it is not installed; and programs that run as ranks of a job."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List, Optional

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    if importlib.util.find_spec("jaxlib") is not None:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="JAX is not installed: pip install 'open-ddl[engines]'"))


@pytest.fixture
def ddlrun(tmp_path: Path) -> Run:
    """Run a program of ``programs``, or a path, with arguments on so many ranks, by ``ddlrun`` with options."""

    def run(
        size: int, program: str, *arguments: str, options: str = "--jax", environ: Optional[Dict[str, str]] = None
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        everything = {**os.environ, "PYTHONPATH": path, **(environ or {})}
        everything.pop("MPITRAMPOLINE_LIB", None)  # ddl_jax sets it, and tests import that
        # JAX waits for a rank that is lost as long as it may. The grace leaves time to say so first.
        command = ["-m", "ddl.launch", "-np", str(size), "--grace", "8", "--dump-dir", str(tmp_path / "dumps")]
        line = [sys.executable, *command, *options.split(), str(HERE / "programs" / program), *arguments]
        return subprocess.run(line, env=everything, capture_output=True, text=True, timeout=240, check=False)

    return run
