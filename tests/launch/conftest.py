"""A launcher whose jobs leave nothing behind, and programs for the ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Callable, Iterator

import pytest
from launch.launcher import Launcher, eventually

HEAD = """
import os, signal, subprocess, sys, time
rank, size = (int(os.environ[name]) for name in ("DDL_RANK", "DDL_SIZE"))
"""


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    left = [] if eventually(lambda: not launcher.alive(), 30) else launcher.alive()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    for process in launcher.started:
        process.wait(60)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    assert not left, "processes were left behind"


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write a program for the ranks; return its path. ``rank`` and ``size`` are defined in it."""

    def write(text: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(HEAD + text)
        return str(path)

    return write
