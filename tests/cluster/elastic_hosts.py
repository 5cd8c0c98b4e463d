"""An elastic job of elastic_steps.py on four hosts, as test_elastic_hosts.py sees it: who has finished which step."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from cluster import elastic_steps
from cluster.elastic_steps import Note

from lab import Cluster

ROOT = Path(__file__).resolve().parents[2]
DDLRUN = (sys.executable, "-m", "ddl.launch", "--min-np", "1", "--output-dir", "logs")
PATIENCE = 100.0  #: seconds for what has no limit of its own
NEVER = 1000.0  #: a DDL_TIMEOUT that nobody waits for: the others go on because they know, not because they are tired


class HostsJob:
    """``slots`` ranks on each of node1 to node4; ddlrun and the store are on node1. Use it in a ``with``.

    ``line``: what starts the ranks in place of ddlrun and its ssh; ``variables`` are its own.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        program: str,
        *options: str,
        slots: int = 2,
        timeout: float = NEVER,
        line: Sequence[str] = (),
        variables: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.cluster, self.folder = cluster, folder
        self.notes: List[Note] = []
        self._rest = ""
        (folder / "steps").touch()
        self._file = (folder / "steps").open()
        self._output = (folder / "output").open("w")
        hosts = cluster.with_slots(slots)
        environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "DDL_TIMEOUT": str(timeout)}
        self.process = cluster.popen(
            "node1",
            [*(line or (*DDLRUN, "-H", hosts)), *options, elastic_steps.__file__, str(folder), program],
            env={**environ, **(variables or {})},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )

    def __enter__(self) -> HostsJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self._file.close()
        self._output.close()

    # --- what the ranks have noted ---

    def read(self) -> List[Note]:
        """Return all notes, with those that have come since."""
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            moment, host, *numbers, weights = line.split()
            self.notes.append(Note(float(moment), host, *map(int, numbers), weights))
        return self.notes

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}; ddlrun: {self.process.poll()}\n{self.said()}"
            time.sleep(0.005)

    def said(self) -> str:
        """What ddlrun and the ranks have printed, for who looks into a failure."""
        errors = [f"--- {path.name} ---\n{path.read_text()}" for path in sorted(self.folder.glob("logs/*.err"))]
        return "\n".join([(self.folder / "output").read_text(), *errors, *map(str, self.read()[-20:])])

    def full(self, size: int, after: float = 0.0) -> Dict[int, Note]:
        """Wait until so many ranks have made three steps together after a moment; return their last notes, by rank."""

        def seen() -> List[Note]:
            return [note for note in self.read() if note.moment > after and note.size == size]

        def settled() -> bool:
            count = collections.Counter((note.generation, note.step) for note in seen())
            return sum(number == size for number in count.values()) >= 3

        self.wait_until(settled, f"{size} ranks do not make steps together")
        newest = max(note.generation for note in seen())
        return {note.rank: note for note in seen() if note.generation == newest}

    def members(self) -> Set[int]:
        """Return the processes that have made the last step that was made by all of its ranks."""
        return self._last_whole_step()[1]

    def generation(self) -> int:
        """Return the generation of the last step that was made by all of its ranks."""
        return self._last_whole_step()[0]

    def _last_whole_step(self) -> Tuple[int, Set[int]]:
        ends: Dict[Tuple[int, int], Set[int]] = {}
        for note in self.read():
            there = ends.setdefault((note.generation, note.step), set())
            there.add(note.process)
            if len(there) == note.size:
                last = note.generation, there
        return last

    def change(self, lost: Iterable[int], joined: Iterable[int] = ()) -> None:
        """Wait until steps are made without the processes ``lost``, and with those that have ``joined``."""
        lost, joined = set(lost), set(joined)

        def changed() -> bool:
            members = self.members()
            return not lost & members and joined <= members

        self.wait_until(changed, f"{lost} should be lost, {joined} be ranks, of {self.members()}")

    # --- faults ---

    def die_at(self, point: str, process: int, seconds: float = 0.0) -> None:
        """Let a process kill itself so long after it has next come to a point; see elastic_steps.py."""
        draft = self.folder / "draft"
        draft.write_text(str(seconds))
        draft.rename(self.folder / f"die.{point}.{process}")

    def wait_for_death(self, point: str, process: int) -> None:
        """Wait until a process has come to the point at which it was to die."""
        wish = self.folder / f"die.{point}.{process}"
        self.wait_until(lambda: not wish.exists(), f"process {process} has not come to {point!r}")

    def kill(self, victims: Sequence[Note]) -> float:
        """Kill processes of one host at once; return the moment before."""
        moment = time.monotonic()
        self.signal("KILL", victims)
        return moment

    def signal(self, name: str, victims: Sequence[Note]) -> None:
        """Send a signal to processes of one host."""
        self.cluster.run(victims[0].host, ["kill", f"-{name}", *(str(note.pid) for note in victims)])

    def wait_for_ends(self, processes: Iterable[Note]) -> None:
        """Wait until these processes have ended; agents leave them as zombies as long as they need their numbers."""
        for note in processes:
            line = ["grep", "-q", "^State:.[^XZ]", f"/proc/{note.pid}/status"]

            def gone(host: str = note.host, line: List[str] = line) -> bool:
                return self.cluster.run(host, line, check=False).returncode != 0

            self.wait_until(gone, f"{note} goes on")

    def words(self, note: Note) -> str:
        """Return what a process has printed on stderr."""
        return (self.folder / "logs" / f"rank.{note.process}.err").read_text()

    # --- who goes on ---

    def go_on(self, since: float, survivors: Sequence[Note]) -> None:
        """Wait until all survivors have finished a step without the others. benchmarks/churn measures how long."""
        there = {note.process for note in survivors}

        def finished() -> Set[int]:
            return {note.process for note in self.read() if note.moment > since and note.size == len(there)} & there

        self.wait_until(lambda: finished() == there, f"not all of {sorted(there)} go on")

    # --- what must hold ---

    def end(self) -> None:
        """Let all end some steps later; ddlrun says that all is well."""
        self.let_end()
        assert self.process.wait(PATIENCE) == 0, self.said()

    def let_end(self) -> None:
        """Let all end some steps later."""
        draft = self.folder / "draft"
        draft.write_text(str(max(note.step for note in self.read()) + 5))
        draft.rename(self.folder / "end")

    def check(self, program: str) -> None:
        """No step is left out, all that finish a step have the same weights then, a generation has one list of ranks.

        A program that goes back to commits takes rank 0's. So a later generation may finish a step again, or a rank has
        it from rank 0 and never finishes it itself.
        """
        commits = program == "commits"
        who: Dict[int, Dict[int, int]] = {}
        weights: Dict[Tuple[int, int], str] = {}
        last: Dict[int, Note] = {}
        for note in self.read():
            ranks = who.setdefault(note.generation, {})
            assert ranks.setdefault(note.rank, note.process) == note.process, (note, who)
            key = (note.step, note.generation if commits else 0)
            assert weights.setdefault(key, note.weights) == note.weights, f"{note}\n{self.said()}"
            before = last.get(note.process, note._replace(step=note.step - 1))
            further = (0, 1, 2) if commits and note.generation > before.generation else (1,)
            assert note.step - before.step in further, f"{before} {note}\n{self.said()}"
            last[note.process] = note
        steps = {step for step, _ in weights}
        assert steps == set(range(1, max(steps) + 1))
        for number, ranks in who.items():
            assert len(set(ranks.values())) == len(ranks), (number, ranks)
