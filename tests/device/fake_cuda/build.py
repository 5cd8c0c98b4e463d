"""Compiles the fake driver on first use, into a folder of the checkout's build/ that is named by its sources.

Processes that want it at the same time wait for the first of them, and a library is moved to its place as a whole.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List, Tuple

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[2] / "build"
FLAGS = ("-std=c++17", "-O1", "-g", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
NAME = "libcuda.so.1"


def _run(line: List[str]) -> None:
    ended = subprocess.run(line, capture_output=True, text=True, timeout=300)
    if ended.returncode != 0:
        raise RuntimeError(f"the fake driver could not be compiled: {' '.join(line)}\n{ended.stderr.strip()[-4000:]}")


def _empty(parent: str, like: Path) -> Path:
    directory = Path(parent) / like.name
    directory.mkdir()
    return directory


def _compile(compiler: str, sources: List[Path], directory: Path) -> Path:
    lines = [[compiler, *FLAGS, "-c", str(source), "-o", str(directory / f"{source.stem}.o")] for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_run, lines))
    return directory


def _link(compiler: str, objects: Path, without: Tuple[str, ...], directory: Path) -> Path:
    options = ["-shared", "-pthread"]
    if without:
        script = directory / "exports"
        script.write_text("{ global: *; local: " + " ".join(f"{name};" for name in without) + " };\n")
        options.append(f"-Wl,--version-script={script}")
    _run([compiler, *options, "-o", str(directory / NAME), *map(str, sorted(objects.glob("*.o")))])
    return directory


@functools.cache
def library(*without: str) -> Path:
    """Return the path of the fake's libcuda.so.1, compiled now if its sources have changed.

    ``without``: names that it is not to export, as an older driver does not.
    """
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise RuntimeError("the fake driver needs g++ (or what CXX names)")
    sources = sorted(HERE.glob("*.cc"))
    content = b"".join(file.read_bytes() for file in [*sources, *sorted(HERE.glob("*.h"))])
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=30).stdout
    facts = b"\0".join([content, version, " ".join(FLAGS).encode(), Path(__file__).read_bytes()])
    folder = BUILD / f"fake-cuda-{hashlib.sha256(facts).hexdigest()[:16]}"
    objects = folder / "objects"
    target = folder / (f"without-{hashlib.sha256(' '.join(without).encode()).hexdigest()[:8]}" if without else "all")
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock, tempfile.TemporaryDirectory(dir=folder) as scratch:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not objects.exists():
                _compile(compiler, sources, _empty(scratch, objects)).rename(objects)
            if not target.exists():
                _link(compiler, objects, without, _empty(scratch, target)).rename(target)
    return target / NAME
