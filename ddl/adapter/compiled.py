"""Compiles an adapter's operator against the framework that is installed, once for each version of it.

Results are kept in ``$XDG_CACHE_HOME/ddl`` (``~/.cache/ddl``). Ranks of one host that start together compile once: a
rank that comes first holds a file lock, which the kernel gives back if it dies.
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
from typing import List, Sequence

from ddl import clock
from ddl.errors import Error

__all__ = ["BuildError", "compiled"]

_LIMIT = 240.0  #: seconds; it takes 6 to 15


class BuildError(Error):
    """The operator cannot be compiled; says why."""


def compiled(
    source: Path, *, framework: str, version: str, key: str, flags: Sequence[str], link_flags: Sequence[str] = ()
) -> Path:
    """Return the library that ``source`` becomes, compiled now if it is not there yet. Raises ``BuildError``.

    ``framework``: its name, for people; ``version``: of it; ``key``: what else the result depends on, besides the
    source and the flags.
    """
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise BuildError(f"there is no C++ compiler {' '.join(compiler) or '(CXX is empty)'}")
    command = [*compiler, "-O2", "-shared", "-fPIC", "-w", *flags]
    whole_key = "\0".join([version, key, *command, source.read_text(encoding="utf-8")])
    digest = hashlib.sha256(whole_key.encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddl"
    library = folder / f"{source.stem}-{version}-{digest}.so"
    try:
        if not library.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with open(library.with_suffix(".lock"), "w", encoding="utf-8") as lock:
                _hold(lock.fileno(), clock.now() + _LIMIT)
                if not library.exists():
                    print(f"ddl: compiling its op for {framework} {version}, once", file=sys.stderr, flush=True)
                    _compile([*command, str(source)], list(link_flags), library)
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


def _compile(command: List[str], link_flags: List[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        output = Path(folder) / library.name
        line = [*command, "-o", str(output), *link_flags]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=_LIMIT, check=False)
        except subprocess.TimeoutExpired:
            raise BuildError(f"{command[0]} did not end within {_LIMIT:g} s") from None
        if done.returncode != 0:
            raise BuildError(f"{shlex.join(line)} failed:\n{done.stderr[-2000:]}")
        os.replace(output, library)  # whole or not at all
