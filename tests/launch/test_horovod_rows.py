"""The eight rows of Horovod's integration tests of elastic jobs, with scripts for Horovod whose import alone differs.

The scripts are in horovod_rows/: for PyTorch, for TensorFlow with a loop of its own, and for ``fit`` of Keras. Hosts
are two names of this machine. All ranks of a host that fails leave, as in Horovod (``--leave-failed-hosts``), where a
row says what is left then. Horovod's own tests skip four of the rows with PyTorch, and two with TensorFlow.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import pytest
from launch.launcher import Launcher
from launch.test_elastic_cluster import told

pytestmark = [pytest.mark.processes, pytest.mark.faults]

SCRIPTS = Path(__file__).with_name("horovod_rows")
FRAMEWORKS = ("torch", "tensorflow")
BATCHES = 10
BOTH = ("localhost:2", "127.0.0.1:2")
AFTER = ("--min-np", "2", "--leave-failed-hosts")
#: Which processes end where, by the number that they start with.
RANK_0, EACH_HOST = {"1,0": [0]}, {"1,0": [0, 2]}
#: Sizes of epochs: the second one ends with four ranks only, so the job cannot end well before ddlrun sees a failure.
NEVER = (4, 4)


@dataclass
class Outcome:
    """How a job has ended, and what its processes have written down."""

    status: int
    told: List[str]
    errors: str
    epochs: List[Dict[str, Any]]  #: a line for each, of rank 0
    batches: Dict[int, List[Dict[str, Any]]]  #: by process

    def column(self, name: str) -> List[Any]:
        return [line[name] for line in self.epochs]

    @property
    def steps(self) -> Dict[int, List[int]]:
        """The batches of each process, counted over all epochs, in the order in which it has trained them."""
        return {n: [line["epoch"] * BATCHES + line["batch"] for line in lines] for n, lines in self.batches.items()}


Play = Callable[..., Outcome]


@pytest.fixture
def play(launcher: Launcher, tmp_path: Path) -> Play:
    """Run the script for a framework as a job, and return how it went.

    ``hosts``: by epoch, as a script names them; the last ones stay. Without, ``options`` name them.
    """

    def run(
        framework: str,
        *options: str,
        hosts: Sequence[Sequence[str]] = (),
        ends: Mapping[str, Sequence[int]] = MappingProxyType({}),
        sizes: Sequence[int] = (),
        epochs: int = 3,
        kill: bool = False,
    ) -> Outcome:
        pytest.importorskip("tensorflow" if framework == "keras" else framework)
        for epoch, names in enumerate(hosts):
            (tmp_path / f"hosts.{epoch}").write_text("".join(f"{name}\n" for name in names))
        (tmp_path / "epochs").touch()
        discovery = tmp_path / "hosts.sh"
        discovery.write_text(
            f"#!/bin/sh\ncd {tmp_path}\nepoch=$(wc -l < epochs)\n"
            f"[ -e hosts.$epoch ] || epoch={len(hosts) - 1}\ncat hosts.$epoch\n"
        )
        discovery.chmod(0o755)
        script = ("--host-discovery-script", str(discovery)) if hosts else ()
        row = ["--sizes", ",".join(map(str, sizes)), "--ends", json.dumps(dict(ends)), "--epochs", str(epochs)]
        row += ["--kill"] if kill else []
        program = str(SCRIPTS / f"with_{framework}.py")
        done = launcher.run(*script, *options, program, str(tmp_path), *row)
        said = told(done.stderr)
        assert (done.returncode == 0) == (len(lines(tmp_path / "epochs")) == epochs), done.stderr
        of_processes = {int(path.suffix[1:]): lines(path) for path in tmp_path.glob("batches.*")}
        return Outcome(done.returncode, said, done.stderr, lines(tmp_path / "epochs"), of_processes)

    return run


def lines(path: Path) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_nothing_redone(outcome: Outcome, epochs: int = 3) -> None:
    """Assert that every process has trained each batch once, from the one with which it came to that where it left."""
    for number, steps in outcome.steps.items():
        assert steps == list(range(steps[0], steps[-1] + 1)), (number, steps)
    times = Counter(step for steps in outcome.steps.values() for step in steps)
    sizes = {line["epoch"] * BATCHES + line["batch"]: line["size"] for b in outcome.batches.values() for line in b}
    assert times == sizes and sorted(times) == list(range(epochs * BATCHES))  # as often as there were ranks then


def check_samples(outcome: Outcome) -> None:
    """Assert that no sample was used twice in an epoch, whoever had it."""
    used = Counter(
        (line["epoch"], sample) for b in outcome.batches.values() for line in b for sample in line["samples"]
    )
    assert used and max(used.values()) == 1


def sizes_and_changes(outcome: Outcome) -> Tuple[List[int], List[int]]:
    return outcome.column("size"), outcome.column("rendezvous")


# --- hosts_added_and_removed, and reset_limit, which is the same job ---


def hosts_come_and_go(play: Play, framework: str, slots: int, limit: int) -> Outcome:
    first, second = f"localhost:{slots}", f"127.0.0.1:{slots}"
    return play(
        framework,
        *("-np", str(slots), "--min-np", str(slots), "--max-np", str(2 * slots), "--reset-limit", str(limit)),
        hosts=[[first], [first, second], [second]],
        sizes=[slots, 2 * slots, slots if limit > 1 else 9],  # 9 ranks never come: it cannot end well
    )


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "slots"), [("torch", 2), ("tensorflow", 1), ("keras", 1)])
def test_hosts_added_and_removed(play: Play, framework: str, slots: int) -> None:
    """Ranks join and leave between two steps: none is done again. Two changes are as many as the limit allows."""
    outcome = hosts_come_and_go(play, framework, slots, 2)
    assert outcome.status == 0, outcome.errors
    assert outcome.column("size") == [slots, 2 * slots, slots]
    assert outcome.column("epoch") == [0, 1, 2]
    assert outcome.column("start_rank") == [0, 0, slots]
    assert set(outcome.column("host")) == {socket.gethostname()}
    # As many as changes, if the newcomers of a host have loaded their programs together.
    assert 3 <= outcome.epochs[-1]["rendezvous"] <= 3 + 2 * (slots - 1)
    check_nothing_redone(outcome)
    if framework == "torch":
        check_samples(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_reset_limit(play: Play, framework: str) -> None:
    outcome = hosts_come_and_go(play, framework, 1, 1)
    assert outcome.status == 1 and outcome.column("size") == [1, 2]
    assert outcome.told[-1] == (
        "ddlrun: the ranks have formed anew after 2 changes, and --reset-limit 1 allows no more; the last change: host "
        "localhost has left the list of hosts"
    )


# --- single_rank_failure, and fault_tolerance_without_scaling, which is the same without a script ---


def check_single_failure(outcome: Outcome) -> None:
    assert outcome.status == 0, outcome.errors
    assert outcome.column("size") == [4, 2, 2]
    assert outcome.column("start_rank") == [0, 2, 2]
    # Horovod has one change. Here there may be another: without rank 0, then without its host.
    assert outcome.epochs[-1]["rendezvous"] in (2, 3)
    assert "; that left: 1; that came: 0," in outcome.told[-1]
    for number in (2, 3):
        assert sorted(set(outcome.steps[number])) == list(range(3 * BATCHES))
        assert len(outcome.steps[number]) <= 3 * BATCHES + 1  # one batch was not committed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "kill"), [("torch", False), ("torch", True), ("tensorflow", True), ("keras", False)]
)
def test_single_rank_failure(play: Play, framework: str, kill: bool) -> None:
    options = ("-np", "2", "--max-np", "4", *AFTER, "--reset-limit", "1")
    outcome = play(framework, *options, hosts=[BOTH], ends=RANK_0, sizes=[4, 2, 2], kill=kill)
    check_single_failure(outcome)
    if framework == "torch":
        check_samples(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "kill"), [("torch", True), ("tensorflow", False)])
def test_fault_tolerance_without_scaling(play: Play, framework: str, kill: bool) -> None:
    options = ("-H", ",".join(BOTH), *AFTER, "--reset-limit", "1")
    check_single_failure(play(framework, *options, ends=RANK_0, sizes=[4, 2, 2], kill=kill))


@pytest.mark.slow
def test_without_the_option_the_other_rank_of_the_host_goes_on(play: Play) -> None:
    """In the middle of an epoch: what the lost rank had used is not used again."""
    outcome = play("torch", "-H", ",".join(BOTH), "--min-np", "2", ends={"1,3": [0]}, kill=True)
    assert outcome.status == 0, outcome.errors
    assert (outcome.column("size"), outcome.column("start_rank")) == ([4, 3, 3], [0, 1, 1])
    assert outcome.column("rendezvous") == [1, 2, 2]
    check_samples(outcome)


# --- jobs that fail ---


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_all_ranks_failure(play: Play, framework: str) -> None:
    hosts = [("localhost:1", "127.0.0.1:1")]
    outcome = play(framework, "-np", "2", "--min-np", "1", hosts=hosts, ends={"1,0": [0, 1]}, sizes=[2, 2])
    assert outcome.status == 1 and outcome.column("size") == [2]
    assert any("no rank is left that holds the state of the training" in line for line in outcome.told), outcome.errors
    assert " exited with status 1; its last lines on stderr:" in outcome.told[-1]


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_all_hosts_blacklisted(play: Play, framework: str) -> None:
    outcome = play(framework, "-np", "2", "--max-np", "4", *AFTER, hosts=[BOTH], ends=EACH_HOST, sizes=NEVER)
    assert outcome.status == 1 and outcome.column("size") == [4]
    why = "on every host a process has failed, so none gets a new one: localhost, 127.0.0.1; the last change: rank "
    assert any(why in line for line in outcome.told), outcome.errors


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_min_hosts_timeout(play: Play, framework: str) -> None:
    options = ("-np", "4", "--min-np", "4", "--max-np", "4", "--elastic-timeout", "8")
    outcome = play(framework, *options, hosts=[BOTH], ends=RANK_0, sizes=NEVER)
    assert outcome.status == 1 and outcome.column("size") == [4]
    assert any(
        "3 ranks left, and --min-np is 4, since 8 s (--elastic-timeout); the last change: rank 0 (host localhost, " in x
        for x in outcome.told
    ), outcome.errors


# --- blacklist_cooldown ---


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_blacklist_cooldown(play: Play, framework: str) -> None:
    """The second process of a host fails, the host comes back after 2 seconds, and it fails there once more."""
    outcome = play(
        framework,
        *("-np", "2", "--max-np", "4", *AFTER, "--blacklist-cooldown-range", "1", "2", "--reset-limit", "2"),
        hosts=[BOTH],
        ends={"1,0": [3], "3,0": [5]},  # 5 is started in the slot that 3 had
        sizes=[4, 2, 4, 2],
        epochs=5,
    )
    assert outcome.status == 0, outcome.errors
    assert outcome.column("size") == [4, 2, 4, 2, 2]  # the last one ends before the host is back again
    assert outcome.column("start_rank") == [0] * 5
    assert sum("gets no new process for 2.0 s" in line for line in outcome.told) == 2
