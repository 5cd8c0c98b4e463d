"""Finds the clusters of this machine, and removes the files of those whose builder and keeper are both gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Iterator, Tuple

from lab.system import PREFIX, cgroups

__all__ = ["clusters", "remove_leftovers"]


def clusters() -> Iterator[Tuple[Path, bool]]:
    """Yield all clusters' directories, and whether a builder or keeper lives: their lock dies with the last of them."""
    for log in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*/log")):  # the log is made after the lock
        with contextlib.suppress(FileNotFoundError):  # its keeper has just removed it
            lock = os.open(log.parent, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield log.parent, False
            except BlockingIOError:
                yield log.parent, True
            finally:
                os.close(lock)


def remove_leftovers() -> None:
    """Remove the files of clusters whose keeper was killed. What is still dying waits for the next build."""
    for folder, alive in clusters():
        cgroup = cgroups() / folder.name
        if not alive:
            with contextlib.suppress(OSError):
                for directory in (*cgroup.glob("*/"), cgroup):
                    if directory.exists():
                        directory.rmdir()
                shutil.rmtree(folder)
