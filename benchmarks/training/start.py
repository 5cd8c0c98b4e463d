"""The contestants, and ``Running``: a contestant that was started, and trains when it is told to.

Ranks (worker.py) connect to a Unix socket in a directory of the run and exchange lines with this program: JSON
from them, a word to them. In between they sleep.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Dict, List, Optional

from benchmarks import regimes, search_path
from benchmarks.training.blocks import Start
from ddl.adapter import malloc_settings

__all__ = ["CONTESTANTS", "DEFAULT", "TrainingContestant", "Failed", "Running"]

TIMEOUT = 300  # seconds for a start, or a block


@dataclass(frozen=True)
class TrainingContestant:
    """``library`` is one of worker.py; ``malloc``: glibc is told to keep freed memory; ``wait``: DDL_GPU_WAIT."""

    library: str
    malloc: bool
    wait: str = "host"

    def environment(self) -> Dict[str, str]:
        if self.library in ("ddl", "ddp_over_ddl"):  # DDL sets it itself
            return {"DDL_TUNE_ALLOCATOR": "1" if self.malloc else "0", "DDL_GPU_WAIT": self.wait}
        return malloc_settings.environ() if self.malloc else {}


CONTESTANTS: Dict[str, TrainingContestant] = {
    "alone": TrainingContestant("alone", malloc=False),
    "alone+malloc": TrainingContestant("alone", malloc=True),
    "synced+malloc": TrainingContestant("synced", malloc=True),
    "ddl": TrainingContestant("ddl", malloc=True),
    "ddl-malloc": TrainingContestant("ddl", malloc=False),  # only where it is named: nobody needs to run it so
    "ddp-over-ddl": TrainingContestant("ddp_over_ddl", malloc=True),
    "ddp-over-ddl+stream": TrainingContestant("ddp_over_ddl", malloc=True, wait="stream"),
    "ddp": TrainingContestant("ddp", malloc=False),
    "ddp+malloc": TrainingContestant("ddp", malloc=True),
    "ddp+view": TrainingContestant("ddp_view", malloc=False),
    "ddp+view+malloc": TrainingContestant("ddp_view", malloc=True),
}
#: The others are for those who name them.
DEFAULT = tuple(name for name in CONTESTANTS if name != "ddl-malloc" and "over-ddl" not in name)


class Failed(Exception):
    """A contestant ended with an error, or with wrong weights; the text says which and how."""


class Running:
    """One start of a contestant. ``save``: where rank 0's weights are to go. Methods raise ``Failed``."""

    def __init__(
        self, name: str, model: str, ranks: int, steps: Optional[int], save: Optional[Path], device: str = "cpu"
    ) -> None:
        self._what, self._ranks, self._save = f"{model}, {name}", ranks, save
        self._directory = Path(tempfile.mkdtemp(prefix="ddl-bench-"))
        (self._directory / "probe").write_bytes(bytes(4096))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._directory / "control"))
        self._listener.listen(ranks)
        self._lines: Dict[int, IO[str]] = {}  # by rank
        self._report: List[Dict[str, Any]] = []  # by rank
        contestant = CONTESTANTS[name]
        environment = {name: value for name, value in os.environ.items() if name not in malloc_settings.environ()}
        environment.update(OMP_NUM_THREADS="1", PYTHONPATH=search_path(environment), **contestant.environment())
        line = [sys.executable, "-m", "ddl.launch", "-np", str(ranks), "--no-prefix"]
        line += [sys.executable, "-u", "-m", "benchmarks.training.worker", contestant.library, model]
        line += ["--directory", str(self._directory), "--probe-library", regimes.probe_library(ranks)]
        line += ["--device", device]
        line += (["--steps", str(steps)] if steps else []) + (["--save"] if save else [])
        with (self._directory / "said").open("wb") as said:
            self._process = subprocess.Popen(line, env=environment, stdout=said, stderr=subprocess.STDOUT)

    def wait_until_ready(self) -> None:
        """Return when all ranks have been warmed up, and their weights were found equal."""
        deadline = time.monotonic() + TIMEOUT
        self._listener.settimeout(0.2)
        while len(self._lines) < self._ranks:
            try:
                connection = self._listener.accept()[0]
            except socket.timeout:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise self._failure() from None
                continue
            with connection:
                connection.settimeout(TIMEOUT)
                lines = connection.makefile("rw", encoding="utf-8")
            hello = self._read(lines)
            self._lines[hello["rank"]] = lines
            self._report.append({**hello, "blocks": []})
        self._report.sort(key=lambda entry: int(entry["rank"]))
        if self._save is not None:
            shutil.move(str(self._directory / "weights.npz"), str(self._save))

    def block(self) -> None:
        """Let the ranks train for a block of steps."""
        for report, answer in zip(self._report, self._ask("block")):
            report["blocks"].append(answer)

    def end(self) -> Start:
        """Let the ranks look at their memory and end; return what each has written."""
        for report, answer in zip(self._report, self._ask("end")):
            report.update(answer)
        try:
            if self._process.wait(TIMEOUT) == 0:
                return self._report
        except subprocess.TimeoutExpired:
            pass  # as if it had failed
        raise self._failure()

    def close(self) -> None:
        """End it, if it has not ended, and take its directory away."""
        for lines in self._lines.values():
            lines.close()
        self._listener.close()
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self._directory)

    def _ask(self, word: str) -> List[Any]:
        try:
            for lines in self._lines.values():
                lines.write(word + "\n")
                lines.flush()
        except OSError:
            raise self._failure() from None
        return [self._read(self._lines[rank]) for rank in range(self._ranks)]

    def _read(self, lines: IO[str]) -> Any:
        try:
            line = lines.readline()
        except OSError:  # a time-out is one
            raise self._failure() from None
        if not line:
            raise self._failure()
        return json.loads(line)

    def _failure(self) -> Failed:
        try:
            status = str(self._process.wait(5))
        except subprocess.TimeoutExpired:
            return Failed(f"{self._what}: no answer within {TIMEOUT} s")
        said = (self._directory / "said").read_text("utf-8", "replace")
        return Failed(f"{self._what}: ended with status {status}:\n{said}")
