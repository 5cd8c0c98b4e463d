"""A control group of this machine, for a process that is to have little memory, or little of a processor."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Iterator, Mapping

import pytest

_ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def control_group(controller: str, second: Mapping[str, str], first: Mapping[str, str]) -> Iterator[Path]:
    """Make a group with these limits, of version 2 or else of version 1; yield its folder, and remove it."""
    known = _ROOT / "cgroup.controllers"
    if known.exists() and controller not in known.read_text().split():
        pytest.skip(f"the machine does not let control groups limit '{controller}'")
    group = _ROOT / ("" if known.exists() else controller) / f"ddl-test-{os.getpid()}"
    group.mkdir()
    try:
        for file, value in (second if known.exists() else first).items():
            (group / file).write_text(value)
        yield group
    finally:
        until = time.monotonic() + 10  # its process needs as long to end as it may run
        while (group / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.05)
        group.rmdir()
