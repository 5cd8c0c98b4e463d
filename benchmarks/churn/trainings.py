"""A training whose processes a benchmark kills, stops, and lets join. launched.py starts it."""

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

__all__ = ["ChurnNetwork", "ChurnTraining", "write_at_once"]

T = TypeVar("T", bound="ChurnTraining")

_STEPS_LEFT = 60  # from when the training is told its last step: so far ahead that no rank can have passed it
_WATCHED = 1.5  # seconds after a death that shall change nothing
_SHOWN = 6000  # characters of the training's output, if it fails


@dataclass(frozen=True)
class ChurnNetwork:
    """What is trained.

    step: seconds. width: of the layers. samples: of an epoch. frozen: bytes of weights that no step changes.
    deterministic: sums have the same bits for the same ranks.
    """

    step: float
    width: int
    samples: int
    frozen: int = 0
    deterministic: bool = False

    def command(self, notes: Path) -> List[str]:
        """Return the command of a rank."""
        numbers = (notes, self.step, self.width, self.samples, self.frozen, int(self.deterministic))
        return [sys.executable, "-m", "benchmarks.churn.worker", *map(str, numbers)]


class ChurnTraining:
    """A training under way, with its notes in ``folder``. Use it in a ``with``: it leaves no process behind."""

    def __init__(self, network: ChurnNetwork, folder: Path, period: float = 1.0) -> None:
        self.network = network
        self.folder = folder
        self.path = folder / "notes"
        self.path.touch()
        self._hold = folder / "notes.hold"
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

    def kill_in_turn(self, ranks: Sequence[int], pids: Sequence[int], seconds: float) -> float:
        """Kill the first of ``pids``, and the others ``seconds`` later, while ``ranks`` come to an agreement on it.

        Return how long after that it took until the rest of ``ranks`` had finished a step without them.
        """
        generation = self.notes.newest
        self.kill(*pids[:1])
        time.sleep(seconds)
        moment = self.kill(*pids[1:])
        return self.notes.wait_for_change(moment, generation, [pid for pid in ranks if pid not in pids])

    def kill_and_watch(self, pid: int) -> float:
        """Kill a process that is no rank. Return the longest time between two steps of any rank for a while then."""
        notes = self.notes
        moment = self.kill(pid)
        end = moment + _WATCHED
        notes.wait(lambda: notes.complete and all(note.moment > end for note in notes.now), "steps after that moment")
        return notes.longest_gap(moment, end)

    def freeze_and_wait(self, ranks: Sequence[int], pid: int) -> float:
        """Stop one of ``ranks`` by SIGSTOP; return how long it took until all others had finished a step without it."""
        self.lost.append(pid)
        generation, moment = self.notes.newest, time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        return self.notes.wait_for_change(moment, generation, [other for other in ranks if other != pid])

    def thaw(self, pid: int) -> float:
        """Let a process go on that was stopped; return when that was, in monotonic seconds."""
        moment = time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # ddlrun has ended it meanwhile
            os.kill(pid, signal.SIGCONT)
        return moment

    # --- processes that are to join ---

    def hold_newcomers(self) -> None:
        """Let no process join from now on: they load, say that they are ready, and wait."""
        self._hold.touch()

    def let_newcomers_join(self) -> float:
        """Let them join, and return when that was, in monotonic seconds."""
        moment = time.monotonic()
        self._hold.unlink()
        return moment

    def wait_for_newcomers(self, count: int) -> List[int]:
        """Return so many processes that are ready to train, and are no ranks yet."""
        self.notes.wait(lambda: len(self._newcomers()) >= count, f"{count} processes that are ready to join")
        return self._newcomers()[:count]

    def wait_until_state_is_given(self) -> int:
        """Return a process that gets the state from the ranks now."""
        (pid,) = self.wait_for_newcomers(1)
        self.notes.wait(
            lambda: pid in self.notes.latest or any(note.gives for note in self.notes.now), f"that process {pid} asks"
        )
        return pid

    def _newcomers(self) -> List[int]:
        notes = self.notes
        return [pid for pid in notes.ready if pid not in notes.latest and pid not in self.lost]

    # --- the end ---

    def end(self) -> List[str]:
        """Let the training end; return what is wrong, for people."""
        notes = self.notes
        notes.read()
        write_at_once(self.folder / "notes.end", str(max(note.step for note in notes.latest.values()) + _STEPS_LEFT))

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


def write_at_once(path: Path, text: str) -> None:
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
