"""Trainings on this machine whose processes a benchmark kills: started by ddlrun, or one by one (``DDL_ELASTIC=1``)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Type, TypeVar

from benchmarks import search_path
from benchmarks.churn.notes import PATIENCE, RankNotes
from benchmarks.churn.usage import UsageHistory
from ddl.errors import Error

__all__ = ["ChurnNetwork", "ChurnTraining", "LaunchedTraining", "SeparateTraining"]

T = TypeVar("T", bound="ChurnTraining")

_STEPS_LEFT = 60  # from when the training is told its last step: so far ahead that no rank can have passed it
_WATCHED = 1.5  # seconds after the death of ddlrun
_SHOWN = 6000  # characters of the training's output, if it fails


@dataclass(frozen=True)
class ChurnNetwork:
    """What is trained.

    step: seconds. width: of the layers. samples: of an epoch. frozen: bytes of weights that no step changes.
    """

    step: float
    width: int
    samples: int
    frozen: int = 0

    def command(self, notes: Path) -> List[str]:
        """Return the command of a rank."""
        numbers = (notes, self.step, self.width, self.samples, self.frozen)
        return [sys.executable, "-m", "benchmarks.churn.worker", *map(str, numbers)]


class ChurnTraining:
    """A training under way, with its notes in ``folder``. Use it in a ``with``: it leaves no process behind."""

    def __init__(self, network: ChurnNetwork, folder: Path, period: float = 1.0) -> None:
        self.network = network
        self.folder = folder
        self.path = folder / "notes"
        self.path.touch()
        self.started: List[subprocess.Popen[bytes]] = []  #: by this benchmark itself
        self.lost: List[int] = []  #: processes that were killed, or were not to live on
        self.usage = UsageHistory(folder / "usage.csv", self.pids, self.launcher_pids, period)
        self.notes = RankNotes(self.path, self.alive, self.usage.look, self.pid_of)
        self._output = (folder / "output").open("ab")

    def start(self, command: Sequence[str], variables: Dict[str, str]) -> None:
        """Start a process of the training."""
        environ = {**os.environ, "PYTHONPATH": search_path(os.environ), **variables}
        self.started.append(subprocess.Popen(command, env=environ, stdout=self._output, stderr=self._output))

    def pid_of(self, note: Mapping[str, Any]) -> int:
        """Return the id here of the process that has written a note."""
        return int(note["pid"])

    def pids(self) -> List[int]:
        """Return the processes of the newest generation in the order of their ranks."""
        members = self.notes.members()
        return [members[rank] for rank in sorted(members)]

    def wait_for_ranks(self, least: int, most: int = 1 << 30) -> List[int]:
        """Return the processes in the order of their ranks, once a generation of so many has finished a few steps."""
        self.notes.wait(lambda: least <= len(self.notes.members()) <= most, f"{least} ranks that go on together")
        return self.pids()

    def alive(self) -> bool:
        """Return whether there are processes that may go on."""
        ranks = any(os.path.exists(f"/proc/{note.pid}") for note in self.notes.now)
        return ranks or any(process.poll() is None for process in self.started)

    def launcher_pids(self) -> List[int]:
        """Return the processes that started the ranks."""
        return []

    def running(self) -> List[int]:
        """Return all processes that train, those that have not become ranks, too."""
        command = "\0".join(self.network.command(self.path)).encode()
        pids = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if path.read_bytes().startswith(command):
                    pids.append(int(path.parent.name))
        return pids

    def kill(self, *pids: int) -> float:
        """Kill processes at once; return when that was, in monotonic seconds."""
        self.lost += pids
        moment = time.monotonic()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # the death of another one has ended it
                os.kill(pid, signal.SIGKILL)
        return moment

    def kill_and_wait(self, ranks: Sequence[int], *pids: int) -> float:
        """Kill some of ``ranks``; return how long it took until all others had finished a step without them."""
        generation = self.notes.newest
        return self.notes.wait_for_change(self.kill(*pids), generation, [pid for pid in ranks if pid not in pids])

    def end(self) -> List[str]:
        """Let the training end; return what is wrong, for people."""
        notes = self.notes
        notes.read()
        _write(self.folder / "notes.end", str(max(note.step for note in notes.latest.values()) + _STEPS_LEFT))

        def ended() -> bool:
            return notes.complete and all(note.pid in notes.ends for note in notes.now)

        notes.wait(ended, "the end of all ranks")
        return notes.check(self.lost) + self._statuses()

    def _statuses(self) -> List[str]:
        """Wait until the processes that were started here have ended; return which have failed, for people."""
        statuses = {process.pid: process.wait(PATIENCE) for process in self.started}
        return [
            f"process {pid} ended with {status}" for pid, status in statuses.items() if status and pid not in self.lost
        ]

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is not None:
            _print_stacks([*self.running(), *self.launcher_pids()])
        for pid in self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.kill()
            process.wait()
        self._output.close()
        if kind is not None:
            sys.stderr.write((self.folder / "output").read_text(encoding="utf-8", errors="replace")[-_SHOWN:])


class LaunchedTraining(ChurnTraining):
    """Started by ddlrun, which starts a process in place of each that is lost.

    list_hosts: let ddlrun ask how many ranks there may be (``set_slots``).
    """

    def __init__(
        self, network: ChurnNetwork, folder: Path, ranks: int, *, list_hosts: bool = False, period: float = 1.0
    ) -> None:
        super().__init__(network, folder, period)
        line = [sys.executable, "-m", "ddl.launch", "-np", str(ranks), "--min-np", "1"]
        self.set_slots(ranks)
        script = f"cat {self.folder / 'hosts'}"
        line += ["--host-discovery-script", script] if list_hosts else ["--max-restarts", "100000"]
        self.start([*line, *network.command(self.path)], {})

    def set_slots(self, count: int) -> None:
        """With ``list_hosts``: let there be so many ranks, by a planned change."""
        _write(self.folder / "hosts", f"localhost:{count}\n")

    def launcher_pids(self) -> List[int]:
        """Return ddlrun, and its agent if it has one: the parent of the ranks."""
        parents = {self.started[0].pid}
        for pid in self.pids()[:1]:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
                parents.add(int(stat.rpartition(")")[2].split()[1]))
        return sorted(parents)

    def kill_launcher_and_watch(self) -> float:
        """Kill ddlrun. Return the longest time between two steps of any rank since then; no other rank is lost."""
        generation, (launcher,) = self.notes.newest, self.started
        moment = self.kill(launcher.pid)
        self.notes.wait(lambda: time.monotonic() > moment + _WATCHED, "that moment")
        self.wait_for_ranks(1)
        if self.notes.newest != generation:
            raise Error(f"ranks have changed when ddlrun was killed: {self.notes.now}")
        return self.notes.longest_gap(moment, moment + _WATCHED)


class SeparateTraining(ChurnTraining):
    """Ranks that another launcher might have started: they are told what torchrun tells, and rank 0 has the store."""

    def __init__(self, network: ChurnNetwork, folder: Path, ranks: int, *, period: float = 1.0) -> None:
        super().__init__(network, folder, period)
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "churn", "GROUP_RANK": "0"}
        job.update({"GROUP_WORLD_SIZE": "1", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)})
        job.update({"DDL_ELASTIC": "1", "DDL_RENDEZVOUS_DIR": str(folder), "OMP_NUM_THREADS": "1"})
        for rank in range(ranks):
            self.start(network.command(self.path), {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)})


def _write(path: Path, text: str) -> None:
    """Write a file that others read, at once."""
    draft = path.with_name("draft")
    draft.write_text(text, encoding="ascii")
    draft.replace(path)


def _print_stacks(pids: List[int]) -> None:
    """Print what the threads of processes do, if py-spy is there to tell."""
    tool = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    for pid in pids:
        if tool is None:
            return
        print(f"--- process {pid} ---", file=sys.stderr, flush=True)
        subprocess.run([tool, "dump", "--pid", str(pid)], stdout=sys.stderr, check=False)
