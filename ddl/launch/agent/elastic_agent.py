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
import time
from typing import Any, List, Mapping, Sequence

from ddl.bootstrap.environ import Identity
from ddl.errors import ResourceError
from ddl.launch.agent.grace import KILL_GRACE
from ddl.launch.agent.host_agent import Worker
from ddl.launch.agent.processes import signal_group
from ddl.launch.agent.rank_environ import newcomer
from ddl.launch.agent.remote_agent import RemoteHostAgent

__all__ = ["RENEWED", "ElasticHostAgent"]

RENEWED = 75  #: the status of an agent that ends so that a new host takes its place: "try again" in sysexits.h
_LEAVE_SECONDS = 25.0  # that ranks have to leave when their pod is asked to end: Kubernetes kills it after 30


class ElasticHostAgent(RemoteHostAgent):
    """See the head of this file."""

    _leaves = 0  # if not 0: we are to end, with this status
    _outliving: Sequence[Worker] = ()  # ranks that went on without ddlrun

    def ends_job(self, worker: Worker) -> bool:
        return False

    def over(self) -> bool:
        return super().over() or (self.idle and self._leaves != 0)

    def status(self) -> int:
        if self._finished or self._leaves:
            return 0 if self._finished else self._leaves
        if self._lost and self._assignment.returning and not self._stop_signal:
            ends = [worker.exit for worker in self._outliving]
            return 0 if ends and all(end is not None and end.code == 0 for end in ends) else RENEWED
        return super().status()

    def stop(self, number: int) -> None:
        """Somebody on this host wants us to stop. If the host may return, its ranks leave after their step."""
        if not self._assignment.returning or self._lost or self._leaves or number != signal.SIGTERM:
            return super().stop(number)
        self._leaves = 128 + number
        self._send_up({"type": "leaving", "text": f"its agent was told to stop by {signal.Signals(number).name}"})
        late = time.monotonic() + _LEAVE_SECONDS
        self._signals_due = [(late, signal.SIGTERM), (late + KILL_GRACE, signal.SIGKILL)]

    def obey(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "start":
            self._begin_rank(message)
        elif message["type"] == "end":
            self.signal_rank(message["rank"], message["number"])
        elif message["type"] == "renew":
            self._leaves = RENEWED
        else:
            super().obey(message)

    def _begin_rank(self, message: Mapping[str, Any]) -> None:
        rank, job = message["rank"], self._assignment
        numbers = (rank, rank + 1, message["slot"], message["slots"], job.host, message["hosts"])
        identity = Identity(*numbers, self._control.address, self._secret)
        try:
            worker = self._spawn(identity, newcomer(identity))
        except ResourceError as error:
            self._send_up({"type": "failed", "rank": rank, "text": str(error)})
        else:
            self._send_up({"type": "started", "rank": rank, "pid": worker.process.pid})

    def ended(self, worker: Worker) -> None:
        super().ended(worker)
        if worker.exit is not None and worker.exit.failed:
            signal_group(worker.process.pid, signal.SIGKILL)  # what it has started: another rank may need its place

    def cut_off(self, running: List[Worker]) -> None:
        """Let them go on, unless they were about to be stopped."""
        if self._stopping or self._stop_signal or self._leaves:
            super().cut_off(running)
        self._outliving = running
