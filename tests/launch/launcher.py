"""Real ``ddlrun`` processes. Every process of a job carries a mark in its environment, so leftovers are found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, List

import ddl

ROOT = str(Path(ddl.__file__).parent.parent)


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Return whether ``condition`` comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def zombies_of(parent: int) -> List[int]:
    """Return the children of a process that have ended, and that it has not waited for."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text(encoding="utf-8")
        except OSError:  # it has just ended
            continue
        if stat.rpartition(")")[2].split()[:2] == ["Z", str(parent)]:
            pids.append(int(name))
    return pids


@dataclass
class Launcher:
    """Starts ``ddlrun``; ``alive`` lists the processes of all jobs it started, ddlrun's own among them."""

    mark: str = field(default_factory=lambda: "DDL_TEST_MARK=" + uuid.uuid4().hex)
    started: List[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        name, _, value = self.mark.partition("=")
        environ = {**os.environ, "PYTHONPATH": ROOT, name: value, **options.pop("environ", {})}
        command = options.pop("command", None)
        process = subprocess.Popen(
            [command, *arguments] if command else [sys.executable, "-m", "ddl.launch", *arguments],
            env=environ,
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            text=True,
            errors="surrogateescape",
            **options,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        text = options.pop("input", None)
        if text is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*arguments, **options)
        out, err = process.communicate(text, timeout=240)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def alive(self) -> List[int]:
        pids = []
        for name in os.listdir("/proc"):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    marked = self.mark.encode() in file.read().split(b"\0")
            except OSError:  # no process, or it has just ended
                continue
            if marked:
                pids.append(int(name))
        return pids
