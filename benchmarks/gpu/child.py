"""Runs a program with a deadline, and leaves none of its processes behind.

A program may hang in the driver, and ranks of a job are in process groups of their own. So this process takes over
orphans (as a "subreaper"), and ends every process that descends from the program, by its id.

``python -m benchmarks.gpu.child SECONDS LOG FILE PROGRAM …`` does so as a process of its own, which writes to FILE how
the program ended: so several programs run at the same time, each with its own descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

__all__ = ["Ended", "run_child", "run_together"]

_TAKE_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER
_TELL_OF_DEATH = 1  # PR_SET_PDEATHSIG
GRACE = 5.0  #: seconds that a program has to end when it is asked to


@dataclass
class Ended:
    """How a program ended: ``status`` is "ok", "failed" or "timeout"."""

    status: str
    code: int
    seconds: float
    output: str


def _parents() -> Dict[int, int]:
    """Return the parent of each process."""
    parents: Dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return parents


def _descendants(root: int) -> List[int]:
    parents = _parents()
    family = [root]
    for process in family:
        family += [child for child, parent in parents.items() if parent == process]
    return family[1:]


def _end(child: subprocess.Popen[bytes], ours: Sequence[int]) -> None:
    """End the program and all that descends from it; ``ours``: children of this process from before."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        family = [process for process in _descendants(os.getpid()) if process not in ours]
        for process in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, sent)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            child.poll()
            _reap(family, child.pid)
            if not [process for process in _descendants(os.getpid()) if process not in ours]:
                return
            time.sleep(0.02)


def _reap(family: Sequence[int], main: int) -> None:
    """Take note of orphans that have ended."""
    for process in family:
        if process != main:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)


def run_child(line: Sequence[str], environ: Mapping[str, str], cwd: Path, seconds: float, log: Path) -> Ended:
    """Run a program for at most so many seconds; what it prints goes to the end of ``log``, and is returned."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_TAKE_ORPHANS, 1, 0, 0, 0)
    ours = _descendants(os.getpid())
    begin = time.monotonic()
    with log.open("ab") as output:
        start = output.tell()
        child = subprocess.Popen(
            line, env=dict(environ), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            code = child.wait(max(0.1, seconds))
            status = "ok" if code == 0 else "failed"
        except subprocess.TimeoutExpired:
            status, code = "timeout", -1
        finally:
            _end(child, ours)
            prctl(_TAKE_ORPHANS, 0, 0, 0, 0)
    with log.open("rb") as output:
        output.seek(start)
        said = output.read().decode("utf-8", "replace")
    return Ended(status, code, time.monotonic() - begin, said)


def run_together(
    lines: Sequence[Sequence[str]],
    environs: Sequence[Mapping[str, str]],
    cwd: Path,
    seconds: Sequence[float],
    log: Path,
) -> List[Ended]:
    """Run programs at the same time, each for at most so many seconds; their output follows one another in ``log``."""
    watchers: List[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="ddl-gpu-") as folder:
        answers = [Path(folder) / f"{number}.json" for number in range(len(lines))]
        try:
            for line, environ, limit, answer in zip(lines, environs, seconds, answers):
                own = [sys.executable, "-m", "benchmarks.gpu.child", str(limit), str(answer.with_suffix(".log"))]
                watchers.append(subprocess.Popen([*own, str(answer), *line], env=dict(environ), cwd=cwd))
            for watcher in watchers:
                watcher.wait()
        finally:
            for watcher in watchers:
                if watcher.poll() is None:
                    watcher.terminate()
                    watcher.wait()
        ended = [_read(answer, watcher) for answer, watcher in zip(answers, watchers)]
    with log.open("a", encoding="utf-8") as output:
        output.writelines(f"\n--- {' '.join(line)}\n{each.output}" for line, each in zip(lines, ended))
    return ended


def _read(answer: Path, watcher: subprocess.Popen[bytes]) -> Ended:
    try:
        return Ended(**json.loads(answer.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return Ended("failed", watcher.returncode, 0.0, "whoever watched this program has died\n")


def main() -> int:
    """Watch one program; return 0, however it ended."""
    seconds, log, answer, *line = sys.argv[1:]
    ctypes.CDLL(None).prctl(_TELL_OF_DEATH, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the program first
    ended = run_child(line, os.environ, Path.cwd(), float(seconds), Path(log))
    Path(answer).write_text(json.dumps(dataclasses.asdict(ended)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
