"""Real ``ddlrun`` processes. Every process of a job carries a mark in its environment, so leftovers are found.

What ddlrun grants ranks for their last words, and what else it bounds by constants of its own, is over soon. A test of
what comes before such an end, not of the end, says ``constants=PATIENT``: then no slow machine brings it about.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import ddl

ROOT = str(Path(ddl.__file__).parent.parent)

#: Ranks have all the time that they need to end by themselves, once another one has failed or Ctrl-C was pressed.
PATIENT = {"ddl.launch.agent.grace.FAILED": 100.0, "ddl.launch.agent.grace.TOLD": 100.0}
_IMPATIENT = {"ddl.launch.agent.grace.FAILED": 1.0, "ddl.launch.agent.grace.TOLD": 1.0}
_CHANGED = str(Path(__file__).with_name("changed_constants"))
#: A script that names hosts is not taken for one that hangs. Agents of hosts wait for one another, and for names.
_PATIENT_WITH_SCRIPTS = {"ddl.launch.job.discovery.PATIENCE": 100.0}
_PATIENT_WITH_HOSTS = {
    "ddl.launch.agent.reach._CONNECT_SECONDS": 100.0,
    "ddl.launch.agent.preflight._NAME_SECONDS": 100.0,
}


def eventually(condition: Callable[[], object], seconds: float = 100.0) -> bool:
    """Return whether ``condition`` comes true in time. The time is for hangs: who waits does not want to know it."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def outputs_of(*processes: subprocess.Popen[str]) -> List[Tuple[str, str]]:
    """Return what each process has said, on stdout and stderr, when all have ended.

    All pipes are read at the same time: a process with much to say would wait at its own, and others for it.
    """
    with ThreadPoolExecutor(len(processes)) as readers:
        return list(readers.map(lambda process: process.communicate(timeout=240), processes))


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
        """Start ddlrun, or the program ``command``. ``constants``: of ddlrun and its agents, by their whole names."""
        name, _, value = self.mark.partition("=")
        environ = {**os.environ, "PYTHONPATH": ROOT, name: value, **options.pop("environ", {})}
        usual = {} if "command" in options else _IMPATIENT  # pods have a sitecustomize of their own
        constants: Dict[str, float] = {**usual, **options.pop("constants", {})}
        if "--host-discovery-script" in arguments:
            constants = {**_PATIENT_WITH_SCRIPTS, **constants}
        if {"-H", "--host-discovery-script"} & set(arguments):
            constants = {**_PATIENT_WITH_HOSTS, **constants}
        if constants and "--dry-run" not in arguments:
            environ["PYTHONPATH"] = f"{_CHANGED}:{environ['PYTHONPATH']}"
            environ["CHANGED_CONSTANTS"] = json.dumps(constants)
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
