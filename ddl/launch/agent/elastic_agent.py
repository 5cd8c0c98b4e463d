"""An agent of an elastic job: ddlrun has it start and end processes while the job runs.

It stays as long as ddlrun may want something, also without a rank. If it loses ddlrun, its ranks go on, because they
can do without it; their output is lost. They, not the agent, find out whether they are cut off from the other ranks.
If the agent itself is killed, its ranks are, too: nobody else could see how they end.

On a host that may return (a pod) its exit status says whether a new one is to come: none after 0 (all is done) and 1
(ddlrun has ended the job), one after any other. One is also to come if the agent has lost ddlrun and its ranks have
failed: the host may only have been cut off.
"""

from __future__ import annotations

import signal
from typing import Any, List, Mapping, Sequence

from ddl import clock
from ddl.bootstrap.environ import Identity
from ddl.errors import ResourceError
from ddl.launch.agent.grace import KILL_GRACE
from ddl.launch.agent.processes import signal_group
from ddl.launch.agent.rank_environ import newcomer
from ddl.launch.agent.rank_start import Worker
from ddl.launch.agent.remote_agent import FixedAgentCourse, RemoteHostAgent

__all__ = ["RENEWED", "ElasticAgentCourse"]

RENEWED = 75  #: the status of an agent that ends so that a new host takes its place: "try again" in sysexits.h
_LEAVE_SECONDS = 25.0  # that ranks have to leave when their pod is asked to end: Kubernetes kills it after 30


class ElasticAgentCourse:
    """See the head of this file."""

    def __init__(self, agent: RemoteHostAgent) -> None:
        self._agent = agent
        self._otherwise = FixedAgentCourse(agent)  # where there is no difference
        self._leaves = 0  # if not 0: we are to end, with this status
        self._outliving: Sequence[Worker] = ()  # ranks that went on without ddlrun

    def over(self) -> bool:
        return self._leaves != 0

    def status(self) -> int:
        agent = self._agent
        if agent.finished or self._leaves:
            return 0 if agent.finished else self._leaves
        if agent.lost and agent.assignment.returning and not agent.ranks.end_plan.stop_signal:
            ends = [worker.exit for worker in self._outliving]
            return 0 if ends and all(end is not None and end.code == 0 for end in ends) else RENEWED
        return self._otherwise.status()

    def stop(self, number: int) -> None:
        """If the host may return, its ranks leave after their step."""
        agent = self._agent
        if not agent.assignment.returning or agent.lost or self._leaves or number != signal.SIGTERM:
            return self._otherwise.stop(number)
        self._leaves = 128 + number
        agent.send_up({"type": "leaving", "text": f"its agent was told to stop by {signal.Signals(number).name}"})
        late = clock.now() + _LEAVE_SECONDS
        agent.ranks.end_plan.follow([(late, signal.SIGTERM), (late + KILL_GRACE, signal.SIGKILL)])

    def obey(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "start":
            self._begin_rank(message)
        elif message["type"] == "end":
            self._agent.ranks.signal_rank(message["rank"], message["number"])
        elif message["type"] == "renew":
            self._leaves = RENEWED

    def _begin_rank(self, message: Mapping[str, Any]) -> None:
        agent, rank, host = self._agent, message["rank"], self._agent.assignment.host
        numbers = (rank, rank + 1, message["slot"], message["slots"], host, message["hosts"])
        identity = Identity(*numbers, agent.store, agent.secret, agent.store_also)
        try:
            worker = agent.ranks.spawn(identity, newcomer(identity))
        except ResourceError as error:
            agent.send_up({"type": "failed", "rank": rank, "text": str(error)})
        else:
            agent.send_up({"type": "started", "rank": rank, "pid": worker.process.pid})

    def ended(self, worker: Worker) -> None:
        if worker.exit is not None and worker.exit.failed:
            signal_group(worker.process.pid, signal.SIGKILL)  # what it has started: another rank may need its place

    def cut_off(self, running: List[Worker]) -> None:
        """Let them go on, unless they were about to be stopped."""
        if not self._agent.ranks.end_plan.goes_on or self._leaves:
            self._otherwise.cut_off(running)
        self._outliving = running
