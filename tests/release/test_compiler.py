"""The compiler of wheels takes the core, for each processor: it is another one than that of this machine.

It is Clang, which wants to be told of each instruction's feature where g++ does not, and has warnings of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Dict

import pytest

from release.targets import MACHINES

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-wheels" / "bin" / "python"
MAGIC = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF

#: Runs in the environment of `make wheels`, as release/wheels.py does.
BUILD = """
import os, sys
from pathlib import Path
from release.toolchain import toolchain
machine, folder = sys.argv[1], Path.cwd()
programs = toolchain(machine, folder / "toolchain", folder)
programs["DDL_CMAKE_ARGS"] += " -DDDL_WERROR=ON"
line = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "lib"]
os.execve(sys.executable, line, {**os.environ, **programs, "SETUPTOOLS_EXT_SUFFIX": f".{machine}.so"})
"""


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="the compiler of wheels comes by `make .venv-wheels/.done`")
@pytest.mark.parametrize("machine", MACHINES)
def test_it_takes_the_core(machine: str, tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("environments", "csrc", "ddl"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    environ: Dict[str, str] = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [PYTHON, "-c", BUILD, machine], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for module in ("ddl/_core", "ddl_jax/_mpi"):
        header = (tmp_path / "lib" / f"{module}.{machine}.so").read_bytes()[:20]
        assert header[:4] == b"\x7fELF" and int.from_bytes(header[18:20], "little") == MAGIC[machine]
