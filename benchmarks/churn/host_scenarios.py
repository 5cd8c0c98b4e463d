"""What is done to a training on four hosts, and how long its ranks may stand still because of it."""

from __future__ import annotations

import random
from functools import partial
from typing import Callable, Dict, List, Sequence, Tuple

from benchmarks.churn.hosts import CUT_OFF, HostsTraining
from benchmarks.churn.report import PauseLimit, conclude
from benchmarks.churn.scenario import ChurnScenario, ScenarioRun, first
from lab import TWO_PAIRS, Cluster, why_not

__all__ = ["HOST_SCENARIOS"]

_RANKS = TWO_PAIRS.hosts * TWO_PAIRS.slots
_KILL = PauseLimit(p99=2.0)
_SILENCE = PauseLimit(p99=8.0)  # nobody says that a host is gone: 7 s until that is believed, and one more
_SHOWN = 500  # characters of a rank's last words


def _on_hosts(act: Callable[[ScenarioRun, Cluster, HostsTraining], None]) -> Callable[[ScenarioRun], None]:
    """Return a scenario that does this to a training on four hosts; it is skipped where there can be no hosts."""

    def run_there(run: ScenarioRun) -> None:
        reason = why_not()
        if reason is not None:
            run.outcome.skipped = reason
            return
        with Cluster(TWO_PAIRS) as cluster, HostsTraining(run.network, run.folder, cluster) as training:
            act(run, cluster, training)
            conclude(training, run.outcome)

    return run_there


def _middle(chance: random.Random, pids: Sequence[int]) -> int:
    return pids[len(pids) // 2]


def _ranks(run: ScenarioRun, cluster: Cluster, training: HostsTraining) -> None:
    """Two are killed before others are awaited."""
    for number in run.each_time("a rank is killed"):
        if number % 2 == 0:
            training.wait_for_ranks(_RANKS)
            run.kill(training, _middle, "a middle rank is killed", _KILL)
        else:
            run.kill(training, first, "rank 0 is killed", _KILL)
    training.wait_for_ranks(_RANKS)


def _hosts(run: ScenarioRun, cluster: Cluster, training: HostsTraining) -> None:
    """Without ddlrun nobody starts others, so its host comes last."""
    for _ in run.each_time("a host is lost"):
        pids = training.wait_for_ranks(_RANKS)
        victims = training.processes([run.chance.choice(cluster.hosts[1:])])
        run.outcome.add("all on a host are killed", training.kill_and_wait(pids, *victims), _KILL)
    pause = training.lose_first_host(training.wait_for_ranks(_RANKS))
    run.outcome.add("all on ddlrun's host are killed", pause, _KILL)


def _cut(run: ScenarioRun, training: HostsTraining, hosts: Sequence[str], cut: Callable[[], None], what: str) -> None:
    """Cut hosts off from the others; their ranks must end, and say why."""
    pids = training.wait_for_ranks(_RANKS)
    there = training.processes(hosts)
    away = [pid for pid in pids if pid in there]
    errors = [training.errors_of(pid) for pid in away]
    run.outcome.add(what, training.cut_and_wait(pids, away, cut), _SILENCE)
    for words in (path.read_text(encoding="utf-8") for path in errors):
        if not CUT_OFF.search(words):
            run.outcome.problems.append(f"{what}: a rank there ended, but not for that: …{words[-_SHOWN:]}")


def _link(run: ScenarioRun, cluster: Cluster, training: HostsTraining) -> None:
    for _ in run.each_time("a link goes down"):
        host = run.chance.choice(cluster.hosts[1:])
        _cut(run, training, [host], partial(cluster.link_down, host), "a host's link goes down")
        cluster.link_up(host)
    training.wait_for_ranks(_RANKS)


def _partition(run: ScenarioRun, cluster: Cluster, training: HostsTraining) -> None:
    """What parts the racks is for good, so it comes last."""
    ways: List[Tuple[Callable[[str], None], Callable[[str], None], str]] = [
        (cluster.cut, cluster.mend, "a host neither hears nor is heard"),
        (cluster.deafen, cluster.restore, "a host does not hear"),
        (cluster.mute, cluster.restore, "a host is not heard"),
    ]
    for number in run.each_time("a host is cut off"):
        cut, mend, what = ways[number % len(ways)]
        host = run.chance.choice(cluster.hosts[1:])
        _cut(run, training, [host], partial(cut, host), what)
        mend(host)
    _cut(run, training, cluster.hosts[2:], partial(cluster.split, 1), "two hosts lose the other two")


#: By their names for the command line.
HOST_SCENARIOS: Dict[str, ChurnScenario] = {
    "hosts": ChurnScenario("eight ranks on four hosts: one in the middle and rank 0 are killed", 40, _on_hosts(_ranks)),
    "host": ChurnScenario("eight ranks on four hosts: all on a host are killed", 6, _on_hosts(_hosts)),
    "link": ChurnScenario("eight ranks on four hosts: the link of one goes down", 4, _on_hosts(_link)),
    "partition": ChurnScenario("eight ranks on four hosts: some do not hear others", 6, _on_hosts(_partition)),
}
