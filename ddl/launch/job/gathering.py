"""The hosts of a job before its ranks start: each proves that it is fit, step by step.

Its agent says hello; it is given its part of the job, and says that all for that is there; and, if there are several
hosts, it says what it found at the ports of the others.
"""

from __future__ import annotations

import sys
from typing import List, Optional, Protocol

from ddl import clock
from ddl.launch.agent.control import assignment_of
from ddl.launch.agent.end_plan import EndPlan
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.placement import Placement
from ddl.launch.job.cluster_host import ClusterHost
from ddl.launch.job.host_agents import HostAgents
from ddl.net.rails import family_problem

__all__ = ["Gathering", "GatheringJob"]

_SHOWN = 3  # connections that cannot be made, before they are counted


class GatheringJob(Protocol):
    """Whose hosts are gathered. Its loop takes note of what they say. ``problem``: why it cannot begin."""

    config: RunConfig
    placement: Placement
    agents: HostAgents
    problem: str
    end_plan: EndPlan

    @property
    def wanted(self) -> bool:
        """Whether there is no problem, and nobody has stopped the job."""

    def turn(self, until: Optional[float]) -> None:
        """Wait for something to do, at most ``until``, and do it."""


class Gathering:
    """A ``patient`` one asks every host before it gives up, and not only until the first is unfit."""

    def __init__(self, job: GatheringJob, *, patient: bool) -> None:
        self._job = job
        self._agents = job.agents
        self._patient = patient

    def run(self) -> None:
        """Return when all hosts are fit, or when the job is wanted no more, as its ``problem`` says."""
        job, agents = self._job, self._agents
        complaint = "can those hosts reach this one, or does a firewall keep them from it?"
        self._hear_from_all("hello", "no agent has called from", complaint)
        for host in self._fit():
            if "hello" in host.said:
                misfit = host.misfit()
                if misfit:
                    self._unfit(host, misfit)
        if job.wanted:
            agents.post_all(lambda host: assignment_of(job.config, job.placement, host.number).message())
            self._hear_from_all("ready", "directory and program are still not seen to be there on", "are disks slow?")
        if job.wanted and not self._patient:
            job.problem = family_problem([host.name for host in agents.hosts], [host.ips for host in agents.hosts])
        if job.wanted and len(agents.hosts) > 1 and not self._patient:
            peers = [host.token_port for host in agents.hosts]
            agents.post_all(lambda host: {"type": "meet", "peers": peers})
            self._hear_from_all("met", "nothing is heard any more from", "are they very busy?")
            self._conclude_meeting()

    def _fit(self) -> List[ClusterHost]:
        return [host for host in self._agents.hosts if not host.over]

    def _hear_from_all(self, kind: str, complaint: str, question: str) -> None:
        """Wait until every agent has said it, or until one cannot; if patient, also for the others."""
        job, timeout = self._job, self._agents.start_timeout
        deadline = clock.now() + timeout
        while not job.end_plan.stop_signal and (self._patient or not job.problem):
            missing = [host for host in self._fit() if kind not in host.said]
            if not missing:
                break
            if clock.now() >= deadline:
                names = ", ".join(host.name for host in missing)
                for host in missing:
                    self._unfit(host, f"{complaint} {names} within {timeout:g} s (--start-timeout); {question}")
                break
            job.turn(deadline)

    def _conclude_meeting(self) -> None:
        problems: List[str] = []
        for host in self._agents.hosts:
            met = host.said.get("met", {})
            problems += met.get("problems", ())
            for warning in met.get("warnings", ()):
                print(f"ddlrun: warning: {warning}", file=sys.stderr, flush=True)
        if problems:
            shown = "; ".join(problems[:_SHOWN]) + (f"; and {len(problems) - _SHOWN} more" * (len(problems) > _SHOWN))
            self._job.problem = self._job.problem or (
                f"{shown}. Ranks could not send one another data. Let the hosts connect to one another on all TCP "
                "ports from 32768 up, or name the network that joins them (--network-interface); 'ddl doctor' with "
                "the same hosts tells more"
            )

    def _unfit(self, host: ClusterHost, reason: str) -> None:
        host.gone = reason
        self._job.problem = self._job.problem or reason
