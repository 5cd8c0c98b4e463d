"""``python -m benchmarks churn``: what it finds wrong in the notes of ranks, and each scenario with a few deaths."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Optional

import pytest

from benchmarks.churn import host_scenarios
from benchmarks.churn.host_scenarios import HOST_SCENARIOS
from benchmarks.churn.notes import RankNotes, StepNote
from benchmarks.churn.replaying import compare_replay
from benchmarks.churn.report import ChurnOutcome, PauseLimit, compare_followed, compare_steps
from benchmarks.churn.trainings import ChurnNetwork
from benchmarks.churn.usage import UsageHistory
from ddl.adapter.sample_cursor import SampleCursor

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]


class NotesOfTwo:
    """Writes what two ranks of a training of 8 samples note, with 2 samples of each in a step."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notes"
        self.path.touch()
        self._cursors = {pid: SampleCursor(8) for pid in (1, 2)}

    def step(self, pid: int, *, lost: int = 0, digest: Optional[str] = None, generation: int = 0) -> None:
        cursor = self._cursors[pid]
        record = cursor.commit(2, 2, lost=[lost] if lost else [])
        where = {"pid": pid, "rank": pid - 1, "size": 2, "generation": generation, "step": cursor.step}
        state = {"gives": False, "followed": 0, "digest": digest}
        self._write({**where, **state, "moment": 0.05 * cursor.step, "records": [record.to_plain()]})

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


def test_a_step_that_a_rank_finishes_after_the_others_have_gone_on_without_it(tmp_path: Path) -> None:
    both = NotesOfTwo(tmp_path)
    both.step(1)
    both.step(2)
    both.step(1, generation=1)
    both.step(2)  # it was stopped in between
    both.end(1, "a")
    assert both.read().check([2]) == [
        "process 2 has finished step 2 in generation 0, which the others have done without it"
    ]


def test_steps_of_too_few_ranks(tmp_path: Path) -> None:
    both = NotesOfTwo(tmp_path)
    for pid in (1, 2):
        both.step(pid)
        both.step(pid)
    notes = both.read()
    assert notes.steps_below(3, 0.0, 0.2) == 2 and notes.steps_below(3, 0.06, 0.2) == 1
    assert notes.steps_below(2, 0.0, 0.2) == 0


@pytest.mark.slow
def test_a_replay_that_ends_with_other_bits(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    both = NotesOfTwo(tmp_path)
    for pid in (1, 2):
        both.step(pid)
        both.step(pid)
        both.end(pid, "a")
    outcome = ChurnOutcome("a title")
    training: Any = SimpleNamespace(network=ChurnNetwork(0.0, 4, 8), folder=tmp_path, notes=both.read())
    compare_replay(training, outcome)
    assert outcome.problems == ["the ranks ended with other bits than the replay of their steps: ['a after step 2']"]
    assert outcome.notes[0].startswith("a replay of 2 steps by one process ended with ")


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


def test_growth_of_a_short_training_is_not_judged(tmp_path: Path) -> None:
    outcome = ChurnOutcome("a title")
    outcome.compare_usage(UsageHistory(tmp_path / "usage.csv", list, list, 1.0))
    assert outcome.notes == ["growth was not judged: that takes 10 looks at the oldest rank, and there were 0"]


def of_a_state(usual: float, giving: List[float], followed: int) -> ChurnOutcome:
    """Return what is found of a training of three ranks in which a fourth one got so many of 100 bytes."""
    note = StepNote(1.0, 4, 3, 4, 9, 1, followed=followed)
    notes = SimpleNamespace(steps={False: [usual], True: giving}, latest={4: note}, joined={1: 0, 4: 1})
    training: Any = SimpleNamespace(notes=notes, network=ChurnNetwork(0.0, 4, 8, frozen=100))
    outcome = ChurnOutcome("a title")
    compare_steps(training, outcome)
    compare_followed(training, outcome)
    return outcome


def test_a_state_that_slows_steps_or_does_not_come_beside_them_is_wrong() -> None:
    assert of_a_state(0.1, [0.1, 0.1, 0.1], 100).problems == []
    assert of_a_state(0.1, [0.1, 0.1, 0.19], 100).problems == [
        "while a process gets the state, steps take 1.30 times as long on average, more than 1.1"
    ]
    assert of_a_state(0.1, [0.1, 0.1, 0.1], 0).problems == [
        "process 4 got 0 bytes while the others trained, fewer than 100"
    ]


def churn(*arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch")
    line = [sys.executable, "-m", "benchmarks", "churn", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, cwd="/", env=environ, capture_output=True, text=True, timeout=600)


def outcome_of(folder: Path, *options: str) -> Dict[str, Any]:
    """Run a scenario; return its outcome, in which nothing is wrong but that limits may have been missed.

    Nobody is asked to be fast here: other tests may have the cores.
    """
    path = folder / "figures.json"
    ended = churn(*options, "--state", "200000000", "--step", "0.02", "--json", str(path))
    assert ended.returncode in (0, 1) and path.exists(), ended.stderr
    (outcome,) = json.loads(path.read_text())["outcomes"]
    problems = [problem for problem in outcome["problems"] if not re.search(", (more|fewer) than ", problem)]
    assert not problems, f"{problems}\n{ended.stderr}"
    assert outcome["title"] in ended.stdout
    return dict(outcome)


#: Another test has ``two``, as ``middle`` is.
NAMES = ["first", "ddlrun", "store", "again", "frozen", "large", "joiner", "together", "below", "epochs", "soak"]
NAMES += HOST_SCENARIOS


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_few_deaths(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name in HOST_SCENARIOS:
        request.getfixturevalue("clusters_can_be_built")
    options = ["--soak", "6"] if name == "soak" else ["--scenario", name, "--times", "1"]
    outcome = outcome_of(tmp_path, *options)
    assert outcome["pauses"] and outcome["epochs"] > 0 and outcome["ends"] > 0


@pytest.mark.slow
def test_a_process_group_whose_replicas_die(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, "--scenario", "group", "--times", "2")
    assert outcome["trainings"] == 2 and len(outcome["pauses"]["a replica is killed"]) == 2


@pytest.mark.slow
def test_two_jobs_to_which_nothing_happens(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, "--scenario", "idle", "--times", "1")
    assert outcome["trainings"] == 2 and "with 24 MiB of gradients" in outcome["notes"][0]


@pytest.mark.slow
def test_a_missed_limit_ends_with_1() -> None:
    """The pause has the rest of a step in it, and these are longer than the limit for all of it."""
    ended = churn("--scenario", "two", "--times", "1", "--step", "0.4")
    assert ended.returncode == 1, ended.stderr
    assert "WRONG: a rank is killed: p50 is" in ended.stdout
