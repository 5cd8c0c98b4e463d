"""``python -m benchmarks gpu``: runs the steps that have not ended yet, until the time of this call is used up.

The record (record.py) is written before and after each step. So whatever ends a call, the next one goes on with it.
Status 0: all steps have ended well, or cannot run here; 1: some failed; 75: there are steps left, call it again.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from benchmarks import ROOT, machine, search_path
from benchmarks.gpu.child import Ended, run_child, run_together
from benchmarks.gpu.pytest_output import outcomes
from benchmarks.gpu.record import Record, sources_digest
from benchmarks.gpu.steps import BLOCKS, GpuStep, all_steps
from benchmarks.gpu.summary import figure_of, summary
from ddl.errors import ConfigError

__all__ = ["Runner", "add_arguments", "run"]

RESULTS, KEPT = ROOT / "benchmarks" / "results", ROOT / "build" / "gpu"
CALL_AGAIN = 75  #: the status of sysexits.h for "try again later"
SHOWN, SAID = 30, 60  #: lines of a step's output: on the screen, and in the record of one that failed


def _blocks(text: str) -> List[str]:
    names = text.split(",")
    for name in names:
        if name.partition(".")[0] not in BLOCKS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(BLOCKS)}")
    return names


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``python -m benchmarks gpu``."""
    add = parser.add_argument
    add("--blocks", type=_blocks, default=list(BLOCKS), help=f"of {','.join(BLOCKS)} (all), or steps: probe.copies")
    add("--seconds", type=float, default=540.0, help="of this call, the build included (%(default)g)")
    add("--name", help="of the machine, in the name of the file (default: what nvidia-smi calls the GPU)")
    add("--also", type=Path, metavar="FOLDER", help="write record, table and log there, too")
    add("--again", action="store_true", help="run steps that have ended, too: with --blocks those, else all")
    add("--rehearse", action="store_true", help="without a GPU: on the CPU and the tests' driver, small sizes")
    add("--began", type=float, help=argparse.SUPPRESS)  # seconds of the clock at which the call began


def _said_by(line: Sequence[str]) -> str:
    """Return what a program prints; empty if it cannot be run."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(module: str) -> str:
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return ""


def machine_facts(rehearsal: bool) -> Dict[str, Any]:
    """Return what identifies the machine and its software, without what changes from call to call."""
    facts = {name: value for name, value in machine.facts().items() if name not in ("load_before", "date")}
    query = "name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max"
    facts["gpu"] = "" if rehearsal else _said_by(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"])
    facts["versions"] = {name: _version(name) for name in ("torch", "numpy", "jax")}
    facts["rehearsal"] = rehearsal
    return facts


class Runner:
    """Runs steps and keeps their record. ``deadline``: of this call, by the monotonic clock."""

    def __init__(self, record: Record, log: Path, environ: Dict[str, str], deadline: float) -> None:
        self.record, self.log, self.environ, self.deadline = record, log, environ, deadline
        self.source = sources_digest()

    def left(self, steps: Sequence[GpuStep]) -> List[GpuStep]:
        """Return the steps that are to be run."""
        return [step for step in steps if self.record.wants(step.full_name, self.source)]

    def run(self, steps: Sequence[GpuStep]) -> bool:
        """Run steps until all have ended, or the next may not end in time; return whether all have."""
        first = True
        for _, together in itertools.groupby(self.left(steps), key=lambda step: step.together or step.full_name):
            group = list(together)
            runnable = [step for step in group if not step.skipped]
            remaining = self.deadline - time.monotonic()
            expected = max((step.expected for step in runnable), default=0.0)
            if remaining < expected and not (first and remaining > 1):
                return False
            for step in group:
                self.record.begin(step.full_name, step.block, self.source)
                if step.skipped:
                    self.record.end(step.full_name, "skipped", 0.0, step.skipped, [])
            if runnable:
                first = False
                self._run(runnable, remaining)
            for step in group:
                entry = self.record.steps[step.full_name]
                figure = figure_of(entry)
                print(f"==> {step.full_name}: {entry['status']} ({entry['seconds']:.0f} s) {figure}", flush=True)
        return not self.left(steps)

    def _run(self, group: Sequence[GpuStep], remaining: float) -> None:
        with tempfile.TemporaryDirectory(prefix="ddl-gpu-") as folder:
            known = Path(folder) / "record.json"
            known.write_text(json.dumps(self.record.content))
            written = [Path(folder) / f"result.{number}.json" for number in range(len(group))]
            lines = [
                [{"{json}": str(file), "{record}": str(known)}.get(word, word) for word in step.line]
                for step, file in zip(group, written)
            ]
            environs = [{**self.environ, **step.environ} for step in group]
            limits = [min(step.limit, remaining) for step in group]
            with self.log.open("a", encoding="utf-8") as log:
                log.writelines(f"\n==> {step.full_name}: {' '.join(step.line)}\n" for step in group)
            if len(group) == 1:
                every = [run_child(lines[0], environs[0], ROOT, limits[0], self.log)]
            else:
                every = run_together(lines, environs, ROOT, limits, self.log)
            for step, file, limit, ended in zip(group, written, limits, every):
                result = outcomes(ended.output) if step.tests else _read(file)
                # "cut off": by the end of this call, not by its own.
                status = "cut off" if ended.status == "timeout" and limit < step.limit else ended.status
                said = [] if status == "ok" else [f"status {ended.code}", *ended.output.splitlines()[-SAID:]]
                self.record.end(step.full_name, status, ended.seconds, result, said)
                _show(ended, step)


def _show(ended: Ended, step: GpuStep) -> None:
    """Print the end of what a step said; of tests that have passed nothing."""
    if not (step.tests and ended.status == "ok"):
        for line in ended.output.rstrip().splitlines()[-SHOWN:]:
            print(f"    {line}")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _driver_of_tests() -> str:
    """Return the path of the tests' driver, compiled now if need be."""
    program = "from device.fake_cuda.build import library; print(library())"
    path = _said_by([sys.executable, "-c", f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]; {program}"])
    if not path:
        raise ConfigError("a rehearsal needs the tests' driver, and it cannot be compiled here: is there no g++?")
    return path


def _environment(library: str) -> Dict[str, str]:
    """Return the variables of all steps."""
    outer = ("DDL_", "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_", "FAKE_CUDA_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    environ.update(PYTHONPATH=search_path(environ), PYTHONUNBUFFERED="1", DDL_TUNED="off", DDL_TIMEOUT="20")
    if library:
        environ["DDL_CUDA_LIBRARY"] = library
    return environ


def _chosen(steps: Sequence[GpuStep], blocks: Sequence[str]) -> List[GpuStep]:
    return [step for step in steps if step.block in blocks or step.full_name in blocks]


def _finish(record: Record, steps: Sequence[GpuStep], log: Path, also: Optional[Path]) -> None:
    """Print the table, and leave a copy of everything where it was asked for."""
    text = summary(record.content, [step.full_name for step in steps])
    print(f"\n{text}\nwrote {record.folders[0] / record.file}", flush=True)
    if also is not None:
        stem = record.file[: -len(".json")]
        (also / f"{stem}.txt").write_text(text + "\n", encoding="utf-8")
        shutil.copyfile(log, also / f"{stem}.log")


def run(arguments: argparse.Namespace) -> int:
    """Run what is left; return the exit status."""
    elapsed = max(0.0, time.time() - arguments.began) if arguments.began else 0.0
    deadline = time.monotonic() + arguments.seconds - elapsed
    library = _driver_of_tests() if arguments.rehearse else ""
    facts = machine_facts(arguments.rehearse)
    name = arguments.name or ("rehearsal" if arguments.rehearse else facts["gpu"].partition(",")[0] or "no-gpu")
    folders = [*([] if arguments.rehearse else [RESULTS]), KEPT, *([arguments.also] if arguments.also else [])]
    record = Record.open(name, folders, facts)
    log = KEPT / f"{record.file[: -len('.json')]}.log"
    log.touch()
    steps = _chosen(all_steps(library), arguments.blocks)
    if arguments.again:
        for step in steps:
            record.steps.pop(step.full_name, None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that a step is ended with this call
    runner = Runner(record, log, _environment(library), deadline)
    complete = runner.run(steps)
    _finish(record, steps, log, arguments.also)
    if not complete:
        print(f"{len(runner.left(steps))} steps are left: call it again, and it goes on with them", flush=True)
        return CALL_AGAIN
    bad = [step.full_name for step in steps if record.steps[step.full_name]["status"] not in ("ok", "skipped")]
    return 1 if bad else 0
