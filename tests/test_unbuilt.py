"""Sources of DDL that were never built, and come before an installed DDL: the error says what was met."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import ddl

#: What an editable install of setuptools adds may find the core of this checkout.
PLAIN = "import sys; sys.meta_path[:] = [finder for finder in sys.meta_path if 'editable' not in repr(finder)]; "


def run(folder: Path, program: str) -> subprocess.CompletedProcess:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [sys.executable, "-c", PLAIN + program]
    return subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, timeout=100)


def test_what_is_said_of_sources_without_a_core(tmp_path: Path) -> None:
    shutil.copytree(Path(ddl.__file__).parent, tmp_path / "ddl", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for program in ("import ddl; ddl.init()", "import ddl; ddl.empty(3)", "from ddl import _core"):
        done = run(tmp_path, program)
        last = done.stderr.splitlines()[-1]
        assert done.returncode == 1 and last.startswith(f"ImportError: {tmp_path / 'ddl'} has the sources of DDL"), last
        assert f"Run the program in another folder; or build the core there: 'make core' in {tmp_path}" in last
    assert run(tmp_path, "import ddl; print(ddl.__version__)").stdout == f"{ddl.__version__}\n"  # needs no core
