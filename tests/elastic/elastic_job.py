"""A job whose ranks come and go, for tests: real processes, forked as those of ranks.py, and a store in the test.

The function that ranks run says how far it is by ``reached``. The test waits for that (``wait_until``), and then kills
a rank, ends the store, or starts a newcomer.
"""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import ranks

import ddl
from ddl.adapter import elastic
from ddl.store.membership.limits import ElasticLimits
from ddl.store.messages import Message
from ddl.store.server import StoreServer

#: No rank is left out for being slow.
LIMITS = ElasticLimits(patience=100, script_patience=100, answer_patience=100)
PATIENCE = 280.0  #: seconds that a test waits for anything: Theano may have to compile first, beside other compilers


def reached(step: int) -> None:
    """Say that this rank has come so far; while the test says which step is the last one, wait for that."""
    folder = Path(os.environ["RANKS_FOLDER"])
    draft = folder / f"draft.{os.environ['DDL_RANK']}"
    draft.write_text(str(step))
    draft.replace(folder / f"step.{os.environ['DDL_RANK']}")
    deadline = time.monotonic() + PATIENCE
    while (folder / "ending").exists() and not (folder / "end").exists():
        assert time.monotonic() < deadline, "the test has not said which step is the last one"
        time.sleep(0.002)


def may_end() -> bool:
    """Whether the test has done all that it wants to do."""
    return Path(os.environ["RANKS_FOLDER"], "end").exists()


def last_step() -> int:
    """Return the step after which all ranks may end, once the test has done all that it wants to do; far away before.

    It is the same for all, and none has come to it when it is set, if all call ``reached`` after each step.
    """
    path = Path(os.environ["RANKS_FOLDER"], "end")
    return int(path.read_text()) if path.exists() else 1 << 40


def go_on(state: Any, step: Callable[[Any], None], read: Callable[[Any], List[Any]]) -> Dict[str, Any]:
    """Make steps until the test has seen enough, as a rank that commits each of them in ``state.batch``.

    ``step`` may be collective. ``read`` returns arrays of all that a step changes. When this rank begins again, they
    are those of the commit that it goes on from. Returns those of the end, and what else a test looks at.
    """
    sizes: List[int] = []
    committed: Dict[int, List[bytes]] = {}

    def bits() -> List[bytes]:
        return [np.asarray(array).tobytes() for array in read(state)]

    @elastic.run
    def loop(state: Any) -> None:
        sizes.append(ddl.size())
        assert bits() == committed.get(state.batch, bits())
        while True:
            ends = ddl.allreduce(np.array([float(may_end())]), op="sum")
            step(state)
            state.batch += 1
            reached(state.batch)
            committed[state.batch] = bits()
            state.commit()
            if ends[0]:
                return

    loop(state)
    return {"rank": ddl.rank(), "sizes": sizes, "batch": state.batch, "bits": bits(), "commits": len(committed)}


class ElasticJob:
    """``size`` ranks that run ``function(*args)``. Processes are known by their incarnations; use it in a ``with``."""

    def __init__(
        self,
        size: int,
        function: Callable[..., Any],
        *args: Any,
        env: Optional[Dict[str, str]] = None,
        limits: Optional[ElasticLimits] = None,
    ) -> None:
        self.news: List[Message] = []  #: of generations, in their order
        self.leaving: List[int] = []  #: processes that may end before the others
        self._size = size
        self._function, self._args = function, args
        self._env = env or {}
        self._secret = secrets.token_bytes(32)
        self._folder = tempfile.TemporaryDirectory()
        self.folder = self._folder.name  #: in which the ranks, too, may leave files: RANKS_FOLDER
        ranks.prepare(Path(function.__code__.co_filename))
        self.store = StoreServer(self._secret, size, elastic=limits or LIMITS, generation_formed=self.news.append)
        self._processes: Dict[int, Any] = {}
        self._ends: Dict[int, Connection] = {}
        self._killed: List[int] = []
        for rank in range(size):
            self._start(rank, {})

    def _start(self, incarnation: int, more: Dict[str, str]) -> None:
        receiver, theirs = ranks._context.Pipe(duplex=False)
        size = max(self._size, incarnation + 1)
        variables = ranks.environment(incarnation, size, self.store.address, self._secret.hex())
        variables.update({"DDL_TIMEOUT": "100", "DDL_START_TIMEOUT": "100", "RANKS_FOLDER": self._folder.name})
        variables.update({"DDL_ELASTIC": "1", **self._env, **more})
        function = self._function
        main = (theirs, function.__code__.co_filename, function.__name__, self._args, variables, True)
        process = ranks._context.Process(target=ranks._main, args=main)
        process.start()
        theirs.close()
        self._processes[incarnation], self._ends[incarnation] = process, receiver

    def join(self, **environ: str) -> int:
        """Start a process that joins, with an environment of its own; return its incarnation."""
        incarnation = max(self._processes) + 1
        self._start(incarnation, {"DDL_INCARNATION": str(incarnation), **environ})
        return incarnation

    def refused(self, **environ: str) -> str:
        """Start a process that would join, and return the error by which it ends."""
        incarnation = self.join(**environ)
        assert self._ends[incarnation].poll(PATIENCE), f"process {incarnation} has not ended"
        kind, answer = self._ends[incarnation].recv()
        assert kind != "ok", answer
        self._killed.append(incarnation)
        return str(answer)

    def kill(self, *incarnations: int, number: int = signal.SIGKILL) -> float:
        """End processes at once, and return when that was (monotonic seconds)."""
        for incarnation in incarnations:
            os.kill(self._processes[incarnation].pid, number)
        self._killed += incarnations
        return time.monotonic()

    def end_store(self) -> float:
        """End the store's process, as it seems to the ranks, and return when that was."""
        moment = time.monotonic()
        self.store.close()
        return moment

    def steps(self) -> Dict[int, int]:
        """Return how far the living ranks are."""
        texts = {i: Path(self._folder.name, f"step.{i}") for i in self._processes if i not in self._killed}
        return {i: int(path.read_text()) for i, path in texts.items() if path.exists()}

    def wait_until(self, step: int, ranks_there: Optional[int] = None) -> None:
        """Return when all living ranks (or so many) have reached ``step``."""
        wanted = len(self._processes) - len(self._killed) if ranks_there is None else ranks_there
        deadline = time.monotonic() + PATIENCE
        while sum(at >= step for at in self.steps().values()) < wanted:
            assert time.monotonic() < deadline, f"ranks have not reached step {step}: {self.steps()}"
            for i, process in self._processes.items():
                alive = process.is_alive() or i in (*self._killed, *self.leaving)
                assert alive, f"process {i} has ended: {self._answer(i)}"
            time.sleep(0.002)

    def wait_for_generation(self, number: int) -> Message:
        """Return the news of generation ``number``, once it is formed."""
        deadline = time.monotonic() + PATIENCE
        while not any(news["generation"] >= number for news in self.news):
            assert time.monotonic() < deadline, f"there is no generation {number}: {self.news}"
            time.sleep(0.002)
        return next(news for news in self.news if news["generation"] >= number)

    @property
    def generation(self) -> int:
        """The number of the last generation that was formed."""
        return int(self.news[-1]["generation"]) if self.news else 0

    def lose(self, incarnation: int) -> Message:
        """Kill a process; return the news of the generation that follows, once it is formed."""
        number = self.generation + 1
        self.kill(incarnation)
        return self.wait_for_generation(number)

    def gain(self, steps: int = 0) -> Message:
        """Let a process join; return the news of the generation that follows, once it has gone so many steps."""
        number = self.generation + 1
        self.join()
        news = self.wait_for_generation(number)
        if steps:
            self.wait_until(max(self.steps().values()) + steps)
        return news

    def _answer(self, incarnation: int) -> Any:
        try:
            return self._ends[incarnation].recv() if self._ends[incarnation].poll() else "no answer"
        except EOFError:
            return "it died"

    def finish(self) -> Dict[int, Any]:
        """Let the ranks end; return the answers of those that were not killed, by incarnation."""
        Path(self._folder.name, "ending").touch()  # a rank may now say once more how far it is, and waits then
        end = Path(self._folder.name, "end.draft")
        end.write_text(str(max(self.steps().values(), default=0) + 25))
        end.rename(end.with_suffix(""))
        deadline = time.monotonic() + PATIENCE
        answers: Dict[int, Any] = {}
        open_ends = {i: end for i, end in self._ends.items() if i not in self._killed}
        while open_ends:
            ready = wait(list(open_ends.values()), timeout=max(0.0, deadline - time.monotonic()))
            assert ready, f"processes {sorted(open_ends)} did not end within {PATIENCE:g} s"
            for i in [i for i, end in open_ends.items() if end in ready]:
                try:
                    kind, answers[i] = open_ends.pop(i).recv()
                except EOFError:
                    kind, answers[i] = "died", f"exit code {self._processes[i].exitcode}"
                assert kind == "ok", f"--- process {i} ({kind}) ---\n{answers[i]}"
        return answers

    def kill_and_replace(self) -> List[Dict[str, Any]]:
        """Kill rank 0, let another process join, and let all end; return their answers in the order of the ranks."""
        self.wait_until(7)
        self.lose(0)
        self.wait_until(max(self.steps().values()) + 5)
        self.gain(steps=5)
        return sorted(self.finish().values(), key=lambda answer: int(answer["rank"]))

    def survives(self) -> List[Dict[str, Any]]:
        """Check that a job of three goes on without rank 0, then with another one; return what ``go_on`` did."""
        answers = self.kill_and_replace()
        assert [answer["sizes"] for answer in answers] == [[3, 2, 3], [3, 2, 3], [3]]
        first, *others = answers
        assert all((other["bits"], other["batch"]) == (first["bits"], first["batch"]) for other in others)
        assert first["commits"] >= first["batch"] - 1 > others[-1]["commits"]  # none was lost but what rank 0 did last
        return answers

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.is_alive():
                process.kill()
            process.join()
        for end in self._ends.values():
            end.close()
        self.store.close()
        self._folder.cleanup()
