"""What the rows of Horovod's integration tests ask of a script: where a process ends itself, and what is written down.

The scripts beside this file share it. It knows no framework, and nothing of DDL. An epoch has ``BATCHES`` batches. In
its middle the ranks may wait until there are as many as the row says, so that what comes first is no matter of luck.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, Sequence

BATCHES = 10
_MIDDLE = 5


class Row:
    """One row, as the command line says it: FOLDER for what is written, and the options below."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("folder", type=Path)
        parser.add_argument("--epochs", type=int, default=3)
        parser.add_argument("--sizes", default="", help="of the job in each epoch, from its middle on; 0: any")
        parser.add_argument("--ends", type=json.loads, default={}, help='who ends where: {"epoch,batch": [number, …]}')
        parser.add_argument("--kill", action="store_true", help="who ends is killed; else it raises")
        given = parser.parse_args()
        self.epochs: int = given.epochs
        self._folder: Path = given.folder
        self._sizes = [int(size) for size in given.sizes.split(",") if size]
        self._ends: Dict[str, Sequence[int]] = given.ends
        self._kill: bool = given.kill
        self._number = int(os.environ["HOROVOD_RANK"])  # no other process of the job has it

    def begin_batch(self, state: Any, size: Callable[[], int]) -> None:
        """End where the row says so, or wait for the ranks that it wants."""
        if self._number in self._ends.get(f"{state.epoch},{state.batch}", ()):
            if self._kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"process {self._number} ends at epoch {state.epoch}, batch {state.batch}")
        wanted = self._sizes[state.epoch] if state.epoch < len(self._sizes) else 0
        while state.batch == _MIDDLE and wanted and size() != wanted:
            time.sleep(0.02)
            state.check_host_updates()

    def end_batch(self, state: Any, size: int, samples: Sequence[int] = ()) -> None:
        """Write down that this process has trained the batch before ``state.batch``, and on which samples."""
        said = {"epoch": state.epoch, "batch": state.batch - 1, "size": size, "samples": list(samples)}
        self._write(f"batches.{self._number}", said)

    def end_epoch(self, state: Any, start_rank: int, size: int) -> None:
        """Write down how an epoch has ended. On rank 0."""
        said = {"epoch": state.epoch, "start_rank": start_rank, "size": size, "host": os.environ["HOROVOD_HOSTNAME"]}
        self._write("epochs", {**said, "rendezvous": state.rendezvous})

    def _write(self, name: str, said: Dict[str, Any]) -> None:
        with (self._folder / name).open("a") as file:
            file.write(json.dumps(said) + "\n")
