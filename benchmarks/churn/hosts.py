"""A training on several hosts, which are namespaces of this machine (lab/): ranks die, hosts die or are cut off.

A process has one id on its host, which ranks note, and another one here, by which all else knows it.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from benchmarks.churn.trainings import ChurnNetwork, ChurnTraining
from lab import Cluster

__all__ = ["CUT_OFF", "HostsTraining"]

#: What a rank says at its end that hears less than a majority of the others, or is not heard by one.
CUT_OFF = re.compile(r"LeftOut: .*(?:cannot be reached from|no majority of) ")
_PAUSE = "0.5"  # seconds without a new process on a host, each time that one has failed there
_PATIENCE = "3"  # seconds that ranks which are cut off wait for the others


class HostsTraining(ChurnTraining):
    """Ranks in all slots of a cluster. ddlrun is on its first host, and starts a process in place of each lost one."""

    def __init__(self, network: ChurnNetwork, folder: Path, cluster: Cluster) -> None:
        super().__init__(network, folder)
        self._cluster = cluster
        self._pids: Dict[Tuple[str, int], int] = {}  # by host, and by the id there
        self._before = {host: set(cluster.processes(host).values()) for host in cluster.hosts}
        line = [sys.executable, "-m", "ddl.launch", "-H", cluster.with_slots(), "--min-np", "1"]
        line += ["--max-restarts", "100000", "--blacklist-cooldown-range", _PAUSE, _PAUSE]
        line += ["--elastic-timeout", _PATIENCE, "--output-dir", str(folder / "logs")]
        # All hosts share the machine's few cores, and no rank knows it: a rank that spins takes another's core.
        self.start(cluster.command(cluster.hosts[0], [*line, *network.command(self.path)]), {"DDL_SPIN_US": "0"})

    def pid_of(self, note: Mapping[str, Any]) -> int:
        host, pid = who = (note["host"], note["pid"])
        if who not in self._pids:
            ended = -1 - len(self._pids)  # a number that no process has
            self._pids[who] = self._cluster.processes(host).get(pid, ended)
        return self._pids[who]

    def processes(self, hosts: Sequence[str]) -> List[int]:
        """Return what the training has on these hosts: ranks, newcomers, agents, and on the first host ddlrun."""
        there = [set(self._cluster.processes(host).values()) - self._before[host] for host in hosts]
        return sorted(set().union(*there), reverse=True)  # children first: a parent's death might end them

    def lose_first_host(self, ranks: Sequence[int]) -> float:
        """Kill all on ddlrun's host at once; return how long it took until the other ranks had finished a step."""
        self.lost.append(self.started[0].pid)  # it waits here for ddlrun to end
        return self.kill_and_wait(ranks, *self.processes(self._cluster.hosts[:1]))

    def cut_and_wait(self, ranks: Sequence[int], away: Sequence[int], cut: Callable[[], None]) -> float:
        """Let ``cut`` part some of ``ranks`` from the others, and return how long it took until these had gone on.

        That is, until all of them had finished a step without those. Those end by themselves, which is awaited, too.
        """
        self.lost += away
        generation, moment = self.notes.newest, time.monotonic()
        cut()
        pause = self.notes.wait_for_change(moment, generation, [pid for pid in ranks if pid not in away])
        self.notes.wait(lambda: not set(away) & set(self.running()), f"the end of {away}, which are cut off")
        return pause

    def errors_of(self, pid: int) -> Path:
        """Return the file with what a rank prints as errors. The rank must be there."""
        environ = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8")
        number = environ.partition("\0DDL_RANK=")[2].partition("\0")[0]
        return self.folder / "logs" / f"rank.{number}.err"
