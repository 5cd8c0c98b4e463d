"""Finds the op of call_op.cc for the TensorFlow that is installed: the wheel's, or one compiled here, once a version.

Wheels have it for some versions (release/tensorflow_ops.py). What is compiled here is kept in ``$XDG_CACHE_HOME/ddl``
(``~/.cache/ddl``). Ranks of one host that start together compile once: a rank that comes first holds a file lock, which
the kernel gives back if it dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import List, Optional

import tensorflow as tf

import ddl
from ddl import clock

__all__ = ["BuildError", "op_library", "prebuilt"]

_SOURCE = Path(__file__).with_name("call_op.cc")
_PREBUILT = Path(__file__).with_name("prebuilt")
_LIMIT = 240.0  #: seconds; it takes 6 to 15


class BuildError(ddl.Error):
    """The op cannot be compiled; says why."""


def op_library() -> Path:
    """Return the op, compiled now if it is not there yet. Raises ``BuildError``."""
    return prebuilt(_PREBUILT) or _compiled()


def prebuilt(folder: Path) -> Optional[Path]:
    """Return the op in a wheel's folder that fits the TensorFlow that is installed, if there is one.

    It fits if it was compiled for this version, with the flags that this TensorFlow asks for: they choose layouts.
    """
    library = folder / f"call_op-{tf.__version__}.so"
    flags = library.with_suffix(".flags")
    asked = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    return library if flags.exists() and flags.read_text(encoding="utf-8").split() == asked else None


def _compiled() -> Path:
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise BuildError(f"there is no C++ compiler {' '.join(compiler) or '(CXX is empty)'}")
    command = [*compiler, "-O2", "-shared", "-fPIC", "-w", *tf.sysconfig.get_compile_flags()]
    key = "\0".join([tf.__version__, tf.version.GIT_VERSION, *command, _SOURCE.read_text(encoding="utf-8")])
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddl"
    library = folder / f"call_op-{tf.__version__}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    try:
        if not library.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with open(library.with_suffix(".lock"), "w", encoding="utf-8") as lock:
                _hold(lock.fileno(), clock.now() + _LIMIT)
                if not library.exists():
                    _compile(command, library)
    except OSError as error:
        raise BuildError(f"{folder} cannot be used: {error}") from error
    return library


def _hold(lock: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if clock.now() > deadline:
                raise BuildError(f"another process has been compiling for {_LIMIT:g} s") from None
            time.sleep(0.1)


def _compile(command: List[str], library: Path) -> None:
    print(f"ddl_tensorflow: compiling its op for TensorFlow {tf.__version__}, once", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        output = Path(folder) / library.name
        line = [*command, str(_SOURCE), "-o", str(output), *tf.sysconfig.get_link_flags()]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=_LIMIT, check=False)
        except subprocess.TimeoutExpired:
            raise BuildError(f"{command[0]} did not end within {_LIMIT:g} s") from None
        if done.returncode != 0:
            raise BuildError(f"{shlex.join(line)} failed:\n{done.stderr[-2000:]}")
        os.replace(output, library)  # whole or not at all
