"""Compiles the C++ programs of ``native/`` on first use, for this processor, into the user's cache directory.

A program's name there contains a hash of its sources, its flags, the compiler and the processor, so a change of any of
them compiles anew. Where there is no g++, the limit and the probes are left out of a run, which says so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.machine import processor

__all__ = ["Unavailable", "compiled"]

SOURCES = Path(__file__).resolve().parent / "native"
# GCC's own AVX-512 header raises the two warnings that are switched off.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-pthread", "-Wno-uninitialized", "-Wno-maybe-uninitialized")


class Unavailable(Exception):
    """A program cannot be had on this machine; the message says why."""


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddl"


def compiled(name: str) -> Path:
    """Return the program of ``native/NAME.cc`` (a shared library for ``probe``), compiled now if need be.

    Raises ``Unavailable`` without g++ (or what CXX names), or when it fails.
    """
    compiler = os.environ.get("CXX") or "g++"
    path = shutil.which(compiler)
    if path is None:
        raise Unavailable(f"no C++ compiler ({compiler} was not found)")
    flags = [*FLAGS, *(("-shared", "-fPIC") if name == "probe" else ())]
    version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout
    content = b"".join(source.read_bytes() for source in sorted(SOURCES.iterdir()) if source.suffix in (".cc", ".h"))
    facts = "\0".join((*flags, version, str(processor())))
    digest = hashlib.sha256(content + facts.encode()).hexdigest()[:16]
    target = _cache() / f"bench-{name}-{digest}"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as directory:
            output = Path(directory) / name
            line = [path, *flags, "-o", str(output), str(SOURCES / f"{name}.cc")]
            ended = subprocess.run(line, capture_output=True, text=True, timeout=300)
            if ended.returncode != 0:
                raise Unavailable(f"{compiler} could not compile {name}.cc: {ended.stderr.strip()[-500:]}")
            output.replace(target)  # at once: another run may be doing the same
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{name}.cc could not be compiled: {error}") from error
    return target
