"""The course of a job on several hosts that keeps its ranks: all begin together, and the first that fails ends it.

A host whose agent has gone before its ranks have ended counts as a failed rank.
"""

from __future__ import annotations

import sys
from typing import ClassVar, Optional

from ddl.launch.agent.failures import Exit, first_failure
from ddl.launch.agent.loop import Handlers
from ddl.launch.job.cluster_host import ClusterHost
from ddl.launch.job.cluster_job import ClusterJob
from ddl.net.address import EVERYWHERE
from ddl.store.messages import Message
from ddl.store.server import StoreServer

__all__ = ["FixedClusterCourse"]


class FixedClusterCourse:
    """All ranks begin together, and the first one that fails, or host that is lost, ends the job."""

    outlived: ClassVar[bool] = False

    def __init__(self, job: ClusterJob) -> None:
        self._job = job

    def prepare(self) -> None:
        pass

    def make_store(self) -> StoreServer:
        size, agents = self._job.placement.size, self._job.agents
        port = 0 if agents.entrance is None else agents.entrance.port
        return StoreServer(
            agents.secret,
            size,
            EVERYWHERE,
            port,
            start=False,
            agents=len(agents.hosts),
            from_agent=agents.from_agent,
            encrypt=self._job.config.settings.encrypt,
            host_timeout=self._job.config.settings.host_timeout,
        )

    def gathered(self) -> None:
        pass

    def whose(self, host: ClusterHost, message: Message) -> ClusterHost:
        return host

    def heard(self, host: ClusterHost, message: Message) -> None:
        pass

    def exited(self, host: ClusterHost, entry: Exit) -> None:
        if entry.failed:
            self._job.stop_soon()
        self._finish_if_all_have_ended()

    def lost(self, host: ClusterHost, reason: str) -> None:
        job = self._job
        job.problem = job.problem or f"{host.label}: {reason}"
        for rank in set(host.ranks) - job.ends.ranks:
            how = f"rank {rank} was lost with host {host.name}: {reason}"
            job.agents.server.ended(rank, f"{how},")
            job.display.forget(rank, how)
        job.stop_soon()
        self._finish_if_all_have_ended()

    def _finish_if_all_have_ended(self) -> None:
        """Let the agents end. Until then they stay: if ranks fail, those that have ended well may be the cause."""
        ended, agents = self._job.ends.ranks, self._job.agents
        if all(ended.issuperset(host.ranks) for host in agents.hosts if not host.over):
            agents.post_all(lambda host: {"type": "finish"})

    @property
    def running_ranks(self) -> int:
        return self._job.placement.size - len(self._job.ends.ranks)

    def handlers(self) -> Handlers:
        return {}

    def deadline(self) -> Optional[float]:
        return None

    def turned(self) -> None:
        pass

    def conclude(self) -> int:
        job = self._job
        if job.end_plan.stop_signal:
            return job.output.report_stop(job.end_plan.stop_signal)
        failed = first_failure(job.ends.exits, job.verdict)
        if job.problem and (failed is None or not job.running):
            print(f"ddlrun: {job.problem}", file=sys.stderr)
            job.tell_dumps(None)
            return 1
        if failed is None:
            return 0
        if job.problem:
            print(f"ddlrun: {job.problem}", file=sys.stderr)
        job.report(failed, job.verdict)
        return failed.status

    def close(self) -> None:
        pass
