"""``python -m benchmarks churn``: what it finds wrong in the notes of ranks, and each scenario with a few deaths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from benchmarks.churn import host_scenarios
from benchmarks.churn.host_scenarios import HOST_SCENARIOS
from benchmarks.churn.notes import RankNotes
from benchmarks.churn.report import ChurnOutcome, PauseLimit
from benchmarks.churn.trainings import ChurnNetwork
from benchmarks.churn.usage import UsageHistory
from ddl.adapter.sample_cursor import SampleCursor
from lab import why_not

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]


class NotesOfTwo:
    """Writes what two ranks of a training of 8 samples note, with 2 samples of each in a step."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notes"
        self.path.touch()
        self._cursors = {pid: SampleCursor(8) for pid in (1, 2)}

    def step(self, pid: int, *, lost: int = 0, digest: Optional[str] = None) -> None:
        cursor = self._cursors[pid]
        record = cursor.commit(2, 2, lost=[lost] if lost else [])
        where = {"pid": pid, "rank": pid - 1, "size": 2, "generation": 0, "step": cursor.step, "gives": False}
        self._write({**where, "moment": 0.05 * cursor.step, "records": [record.to_plain()], "digest": digest})

    def end(self, pid: int, digest: str) -> None:
        self._write({"pid": pid, "end": 2, "digest": digest})

    def _write(self, note: Dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(note) + "\n")

    def read(self) -> RankNotes:
        notes = RankNotes(self.path, lambda: True, lambda: None, lambda note: int(note["pid"]))
        notes.read()
        return notes


def test_ranks_that_agree(tmp_path: Path) -> None:
    both = NotesOfTwo(tmp_path)
    for _ in range(2):
        both.step(1, digest="a")
        both.step(2, digest="a")
    both.end(1, "b")
    both.end(2, "b")
    notes = both.read()
    assert notes.check([]) == [] and notes.epochs(8) == 1


def test_ranks_that_end_with_different_weights(tmp_path: Path) -> None:
    both = NotesOfTwo(tmp_path)
    both.end(1, "a")
    both.end(2, "b")
    (problem,) = both.read().check([])
    assert problem.startswith("ranks have ended with different weights")


def test_a_step_that_only_the_dead_had_finished_is_done_again(tmp_path: Path) -> None:
    both = NotesOfTwo(tmp_path)
    both.step(1)
    both.step(2, lost=1)  # the other rank's share was not used
    both.end(2, "a")
    notes = both.read()
    assert notes.check([1]) == []
    assert notes.check([]) == ["ranks do not agree on samples of step 1, which process 1 had first"]


def test_a_dead_rank_that_disagreed_before_its_last_step(tmp_path: Path) -> None:
    both = NotesOfTwo(tmp_path)
    both.step(1, digest="a")
    both.step(2, digest="b")
    both.step(1)
    both.end(2, "a")
    assert both.read().check([1]) == ["ranks do not agree on weights of step 1, which process 1 had first"]


def test_limits_that_are_missed() -> None:
    outcome = ChurnOutcome("a title")
    for seconds in (0.1, 0.2, 0.4):
        outcome.add("a rank is killed", seconds, PauseLimit(p50=0.2, p99=0.3))
        outcome.add("a rank rests", seconds, PauseLimit())
    outcome.compare_with_limits()
    assert outcome.problems == ["a rank is killed: p99 is 396 ms, more than 300 ms"]
    assert "WRONG: a rank is killed: p99 is 396 ms, more than 300 ms" in outcome.text()


def grown(folder: Path, kilobytes: int, descriptors: int) -> List[str]:
    """Return what is wrong if all processes use so much more in the end."""
    usage = UsageHistory(folder / "usage.csv", list, list, 1.0)
    numbers = {"kilobytes": 1000, "descriptors": 20, "threads": 2}
    for second in range(20):
        late = second >= 15
        more = {"kilobytes": kilobytes * late, "descriptors": descriptors * late, "threads": 0}
        line = {"seconds": second, "ranks": 4, "oldest": 1, "ranks_kilobytes": 4 * (1000 + kilobytes * late)}
        for who in ("oldest", "launcher"):
            line.update({f"{who}_{name}": numbers[name] + more[name] for name in numbers})
        usage.lines.append(line)
    outcome = ChurnOutcome("a title")
    outcome.compare_usage(usage)
    return outcome.problems


def test_growth_is_wrong(tmp_path: Path) -> None:
    assert grown(tmp_path, 50, 2) == []
    assert [problem.partition(":")[0] for problem in grown(tmp_path, 200, 2)] == [
        *("a rank, on average", "the oldest rank", "ddlrun and its agent")
    ]
    assert grown(tmp_path, 50, 10) == [
        "the oldest rank: descriptors have grown from 20 to 30",
        "ddlrun and its agent: descriptors have grown from 20 to 30",
    ]


@pytest.mark.parametrize("name", HOST_SCENARIOS)
def test_where_no_hosts_can_be_made_it_says_why(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_scenarios, "why_not", lambda: "only root may do that")
    outcome = HOST_SCENARIOS[name].run(ChurnNetwork(0.05, 8, 100), tmp_path, seed=1)
    assert outcome.problems == []
    assert outcome.text() == f"{HOST_SCENARIOS[name].title}\nSKIPPED: only root may do that"


def churn(*arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch")
    line = [sys.executable, "-m", "benchmarks", "churn", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, cwd="/", env=environ, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first", "ddlrun", "store", "epochs", "soak", *HOST_SCENARIOS])
def test_a_few_deaths(name: str, tmp_path: Path) -> None:
    """Nobody is asked to be fast here: other tests may have the cores. Another test has ``two``, as ``middle`` is."""
    if name in HOST_SCENARIOS and why_not() is not None:
        pytest.skip(f"no cluster: {why_not()}")
    path = tmp_path / "figures.json"
    options = ["--soak", "6"] if name == "soak" else ["--scenario", name, "--times", "1"]
    ended = churn(*options, "--samples", "200", "--step", "0.02", "--json", str(path))
    assert ended.returncode in (0, 1) and path.exists(), ended.stderr
    (outcome,) = json.loads(path.read_text())["outcomes"]
    problems = [problem for problem in outcome["problems"] if " ms, more than " not in problem]
    assert not problems, f"{problems}\n{ended.stderr}"
    assert outcome["title"] in ended.stdout and outcome["pauses"] and outcome["epochs"] > 0 and outcome["ends"] > 0


@pytest.mark.slow
def test_a_missed_limit_ends_with_1() -> None:
    """The pause has the rest of a step in it, and these are longer than the limit for all of it."""
    ended = churn("--scenario", "two", "--times", "1", "--step", "0.4")
    assert ended.returncode == 1, ended.stderr
    assert "WRONG: a rank is killed: p50 is" in ended.stdout
