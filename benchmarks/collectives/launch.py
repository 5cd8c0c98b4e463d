"""Starts the processes of a contestant, waits for their end and brings back what their ranks wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Dict, List, Sequence

from ddl.errors import Error

__all__ = ["Command", "ContestantFailed", "run_all", "written_by"]

PATIENCE = 900.0  #: seconds that a start may take
_GRACE = 5.0  #: seconds between asking and killing
_SHOWN = 4000  #: characters of a failing contestant's output


class ContestantFailed(Error):
    """A contestant ended with an error or gave a wrong value; the message holds the end of its output."""


@dataclass
class Command:
    """One process to start."""

    line: Sequence[str]
    environ: Dict[str, str] = field(default_factory=dict)


class _Started:
    def __init__(self, command: Command, output: IO[str]) -> None:
        self.process = subprocess.Popen(
            command.line,
            env=command.environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group that can be killed as a whole; Ctrl-C reaches only this process
        )

    def end(self) -> None:
        """Kill all its processes."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, number)
                try:
                    self.process.wait(_GRACE)
                except subprocess.TimeoutExpired:
                    continue
        self.process.wait()


def run_all(name: str, commands: Sequence[Command], output: Path, ranks: int) -> List[Dict[str, Any]]:
    """Run ``commands`` together and return what each rank wrote into ``output``, in rank order.

    ``ContestantFailed`` as soon as one of them fails, or when they take too long; all others are ended then.
    """
    started: List[_Started] = []
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        try:
            for command in commands:
                started.append(_Started(command, said))
            problem = _wait(started)
        finally:
            for worker in started:
                worker.end()
        if not problem and not all((output / f"rank.{rank}.json").exists() for rank in range(ranks)):
            problem = "ended without writing its figures"
        if problem:
            said.seek(0)
            raise ContestantFailed(f"{name} {problem}:\n{said.read()[-_SHOWN:].strip()}")
    return written_by(output, ranks)


def written_by(output: Path, ranks: int) -> List[Dict[str, Any]]:
    """Return what each rank wrote into ``output``, in rank order."""
    return [json.loads((output / f"rank.{rank}.json").read_text()) for rank in range(ranks)]


def _wait(started: Sequence[_Started]) -> str:
    """Wait until all have ended well, or one has not; return what went wrong, if anything."""
    deadline = time.monotonic() + PATIENCE
    while True:
        states = [worker.process.poll() for worker in started]
        failed = [state for state in states if state]
        if failed:
            return f"ended with status {failed[0]}"
        if None not in states:
            return ""
        if time.monotonic() > deadline:
            return f"did not end within {PATIENCE:g} s"
        time.sleep(0.01)
