"""The pods of an elastic job as processes (pods.py): they are started, killed, and come back as a test says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any, Dict

from launch.launcher import Launcher, eventually
from launch.pods import Pods, first_of

__all__ = ["SIMPLE", "TRAINING", "ElasticPods", "both_have_begun", "read_until"]

TRAINING = str(Path(__file__).with_name("elastic_training.py"))
#: A rank that knows nothing of DDL: it ends, or fails, when a file of elastic_training.py's names is there.
SIMPLE = """
echo "$DDL_RANK is on"
while [ ! -e $0/end ]; do
    [ ! -e $0/kill.$DDL_RANK ] || exit 3
    sleep 0.05
done
"""


class ElasticPods:
    """The pods of a manifest, whose ranks end when a file is there in ``folder``."""

    def __init__(self, launcher: Launcher, folder: Path, manifest: str) -> None:
        self.folder = folder
        self._pods = Pods(launcher, folder, manifest)
        self.running: Dict[int, subprocess.Popen[str]] = {}

    def start(self, number: int, failures: int = 0, **environ: str) -> subprocess.Popen[str]:
        self.running[number] = self._pods.start(number, failures, **environ)
        return self.running[number]

    def start_all(self) -> subprocess.Popen[str]:
        """Start all pods; return pod 0."""
        for number in range(self._pods.count):
            self.start(number)
        return self.running[0]

    def kill(self, number: int) -> None:
        """End all processes of a pod, as when its node is gone."""
        process = self.running.pop(number)
        os.kill(first_of(process.pid), signal.SIGKILL)
        process.communicate(timeout=240)
        assert process.returncode != 0

    def wait_for(self, file: str, text: str) -> None:
        """Wait until a file in the image has a line."""
        path = self._pods.folder / file
        assert eventually(lambda: path.exists() and text in path.read_text()), path.exists() and path.read_text()

    def end(self) -> None:
        (self.folder / "end").touch()

    def statuses(self) -> Dict[int, int]:
        """Wait for all pods that run."""
        return {number: process.wait(240) for number, process in self.running.items()}


def read_until(stream: Any, pattern: str) -> str:
    """Return the first line that fits; fail at the end of the output."""
    seen = []
    while line := stream.readline():
        seen.append(line)
        if re.search(pattern, line):
            return str(line)
    raise AssertionError(f"{pattern!r} is not in {seen}")


def both_have_begun(head: subprocess.Popen[str]) -> None:
    """Wait until both ranks have said so: a death before ends an elastic job, too."""
    assert head.stdout is not None
    lines = [head.stdout.readline() for _ in range(2)]
    assert {line.partition("] ")[2] for line in lines} == {"0 is rank 0 of 2\n", "1 is rank 1 of 2\n"}, lines
