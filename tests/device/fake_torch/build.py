"""Compiles the fake device for the torch that is installed, on first use, as ``fake_cuda/build.py`` does its driver."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import List

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[2] / "build"
FLAGS = ("-std=c++20", "-O0", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra")
NAME = "libfake_torch.so"


def _run(line: List[str]) -> None:
    ended = subprocess.run(line, capture_output=True, text=True, timeout=600)
    if ended.returncode != 0:
        raise RuntimeError(f"the fake device could not be compiled: {' '.join(line)}\n{ended.stderr.strip()[-4000:]}")


def _compile(compiler: str, sources: List[Path], directory: Path) -> None:
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    headers = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    libraries = [*(f"-L{folder}" for folder in cpp_extension.library_paths()), "-lc10", "-ltorch_cpu", "-ldl"]
    together = directory / "together.cc"  # torch's headers take most of the time: they are read once
    together.write_text("".join(f'#include "{source}"\n' for source in sources))
    _run([compiler, *FLAGS, abi, *headers, str(together), "-shared", "-o", str(directory / NAME), *libraries])


@functools.cache
def library() -> Path:
    """Return the path of the library, compiled now if its sources or torch have changed."""
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise RuntimeError("the fake device needs g++ (or what CXX names)")
    sources = sorted(HERE.glob("*.cc"))
    content = b"".join(file.read_bytes() for file in [*sources, *sorted(HERE.glob("*.h"))])
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=30).stdout
    installed = f"{torch.__version__} {Path(torch.__file__).parent} {' '.join(FLAGS)}"
    facts = b"\0".join([content, version, installed.encode(), Path(__file__).read_bytes()])
    target = BUILD / f"fake-torch-{hashlib.sha256(facts).hexdigest()[:16]}"
    if not target.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        with open(BUILD / f"{target.name}.lock", "w") as lock, tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                directory = Path(scratch) / target.name
                directory.mkdir()
                _compile(compiler, sources, directory)
                directory.rename(target)
    return target / NAME
