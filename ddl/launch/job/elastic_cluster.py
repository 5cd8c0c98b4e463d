"""An elastic job on several hosts: their agents start and end processes as the machine in elastic_hosts.py orders.

It begins as any job on several hosts does, on the hosts on which there are slots at the start. The agent of a host that
comes later is started when the first process is ordered there. An agent stays until the job ends, also if its host
leaves the list of hosts, and serves when it comes back. If an agent is lost, its processes count as lost.

In pods of Kubernetes (pods.py) nothing but the first agent is started here. Where another one was lost, a new one with
the same number may call: it has the place of the old one, and nothing of its past.

If ddlrun is killed, agents and ranks go on (elastic_agent.py).
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from typing import ClassVar, Dict, List, Optional

from ddl import clock
from ddl.errors import ConfigError
from ddl.launch.agent.control import assignment_of
from ddl.launch.agent.failures import Exit, ends_kept
from ddl.launch.agent.loop import Handlers
from ddl.launch.ask.placement import Placement
from ddl.launch.job.cluster_host import ClusterHost
from ddl.launch.job.cluster_job import ClusterJob
from ddl.launch.job.elastic_course import ElasticCourse
from ddl.launch.job.elastic_events import ProcessEnded, StartProcess
from ddl.launch.job.elastic_store import MOST_HOSTS, elastic_store, leave, lost
from ddl.launch.job.fixed_cluster import FixedClusterCourse
from ddl.launch.launchers import Start
from ddl.launch.launchers.reaching import launcher_of
from ddl.net.address import EVERYWHERE
from ddl.store.messages import Message
from ddl.store.server import StoreServer

__all__ = ["ElasticClusterCourse"]


class ElasticClusterCourse:
    """The ``ClusterCourse`` of an elastic job: it feeds the ``ElasticCourse``, and is its ``ElasticRanks``.

    A job that has no hosts yet begins on those that the script names.
    """

    outlived: ClassVar[bool] = True

    def __init__(self, job: ClusterJob) -> None:
        options = job.config.elastic
        assert options is not None
        self._job = job
        self._agents = job.agents
        self._otherwise = FixedClusterCourse(job)  # where there is no difference
        self._options = options
        self._course = ElasticCourse(options, job.config.num_proc, self)
        self._first: List[StartProcess] = []
        self._by_name: Dict[str, ClusterHost] = {}  # of hosts with the same name, the last one
        self._finished = False

    # --- the beginning ---

    def prepare(self) -> None:
        """Wait until there are enough slots; then the first processes say which hosts the job begins on."""
        job = self._job
        self._course.begin(lambda: job.guard)
        while job.wanted and not self._course.begun:
            job.turn(None)
        if not job.wanted or not self._options.discovery_script:
            return
        ranks: Dict[str, List[int]] = {}
        for order in self._first:
            ranks.setdefault(order.host, []).append(order.incarnation)
        placement = Placement(tuple(ranks), tuple(map(tuple, ranks.values())))
        job.begin_on(placement, launcher_of(job.config).starts(placement, os.environ))

    def make_store(self) -> StoreServer:
        agents = self._agents
        return elastic_store(
            agents.secret,
            self._job.placement.size,
            self._options,
            self._course.post,
            settings=self._job.config.settings,
            host=EVERYWHERE,
            port=0 if agents.entrance is None else agents.entrance.port,
            agents=MOST_HOSTS if agents.entrance is None else len(agents.hosts),
            from_agent=agents.from_agent,
        )

    def gathered(self) -> None:
        for host in self._agents.hosts:
            self._by_name[host.name] = host
            host.going = self._job.running
            host.running = set(host.ranks)

    # --- the loop ---

    def handlers(self) -> Handlers:
        return self._course.handlers() if self._goes_on else {}

    @property
    def _goes_on(self) -> bool:
        return self._job.end_plan.goes_on

    @property
    def _ready(self) -> bool:
        """Whether anything is ordered: not from when the first processes have been ordered until they run."""
        return self._goes_on and (self._job.running or not self._course.begun)

    @property
    def _coming(self) -> List[ClusterHost]:
        return [host for host in self._agents.hosts if host.due and not host.going and not host.over]

    def deadline(self) -> Optional[float]:
        times = (self._course.deadline(), *(host.due for host in self._coming)) if self._ready else ()
        return min((time for time in times if time is not None), default=None)

    def turned(self) -> None:
        if not self._ready:
            return
        self._course.look()
        now = clock.now()
        for host in self._coming:
            if now >= host.due:
                timeout = self._agents.start_timeout
                self._job.lost(host, f"its agent was not ready within {timeout:g} s (--start-timeout)")
        if self._job.running and self._course.over and not self._finished:
            self._finish()

    def _finish(self) -> None:
        """All processes have ended, and none will come: let the agents end."""
        self._finished = True
        for host in self._agents.hosts:
            if host.going:
                self._agents.post(host.number, {"type": "finish"})
            else:
                self._agents.post(host.number, {"type": "signal", "number": int(signal.SIGTERM)})
                host.done = True  # whatever becomes of it

    def whose(self, host: ClusterHost, message: Message) -> ClusterHost:
        """A new agent may have the place of one that was lost."""
        if message["type"] != "hello" or not host.over or not self._is_awaited(host):
            return host
        new = host.returned(clock.now() + self._agents.start_timeout)
        self._agents.hosts[host.number] = self._by_name[host.name] = new
        return new

    def heard(self, host: ClusterHost, message: Message) -> None:
        kind, job = message["type"], self._job
        if kind == "gone" and host.name in self._options.returning:
            if host.done and host.running and not self._finished:
                job.lost(host, "its agent has ended, and was told too late to start a process")
            host.unasked = dict.fromkeys(host.unasked, 0)  # a new agent has not said that
            self._agents.server.readmit(host.number)
        elif kind == "leaving" and self._goes_on:
            self._course.host_leaves(host.name, message["text"])
        elif kind == "started":
            self.tell(f"rank {message['rank']} (host {host.name}, pid {message['pid']}) was started")
        elif kind == "failed":
            host.running.discard(message["rank"])
            self.tell(f"host {host.name}: {message['text']}")
            self._course.post(ProcessEnded(message["rank"], False, f"host {host.name}: {message['text']}"))
        elif job.running and not host.going and not host.over:
            self._hear_newcomer(host, kind)

    def _hear_newcomer(self, host: ClusterHost, kind: str) -> None:
        """Hear a host that has come later, or has returned: it need not meet the others."""
        if kind == "hello":
            misfit = host.misfit()
            if misfit:
                self._job.lost(host, misfit)
            else:
                assignment = assignment_of(self._job.config, self._job.placement, host.number, host.returns)
                self._agents.post(host.number, assignment.message())
        elif kind == "ready":
            self._job.go(host)
            host.going = True
            self._send_waiting(host)
            if host.returns and self._goes_on:
                self._course.host_returned(host.name)

    def _is_awaited(self, host: ClusterHost) -> bool:
        waits = self._job.running and self._goes_on and not self._finished
        return waits and host.name in self._options.returning

    def exited(self, host: ClusterHost, entry: Exit) -> None:
        job = self._job
        host.running.discard(entry.rank)
        job.ends.keep_last(ends_kept(job.placement.size))
        if self._goes_on:
            self._course.process_ended(entry)
        if entry.failed:
            job.dump_now(wanted=False)

    def lost(self, host: ClusterHost, reason: str) -> None:
        waiting, host.waiting = {order.incarnation for order in host.waiting}, []
        for incarnation in host.running - waiting:
            how = f"rank {incarnation} was lost with host {host.name}: {reason}"
            lost(self._agents.server, incarnation, f"{how},")
            self._job.display.forget(incarnation, how)
        host.running = set()
        if self._goes_on and not self._finished:
            self.tell(f"host {host.name} is lost: {reason}")
            self._course.host_failed(host.name, reason)

    @property
    def running_ranks(self) -> int:
        return sum(len(host.running) for host in self._agents.hosts)

    # --- ElasticRanks ---

    def start_process(self, order: StartProcess) -> None:
        """Have the host's agent start a process, and start the agent if there is none."""
        if not self._job.running:
            self._first.append(order)
            return
        host = self._by_name.get(order.host)
        if host is None or host.over:
            host = self._call_host(order.host)
        host.running.add(order.incarnation)
        host.waiting.append(order)
        if host.going:
            self._send_waiting(host)

    def _call_host(self, name: str) -> ClusterHost:
        """Start the agent of a host that comes later. Each gets a number of its own, also on the same host."""
        agents = self._agents
        host = ClusterHost(len(agents.hosts), name, (), due=clock.now() + agents.start_timeout)
        agents.hosts.append(host)
        self._by_name[name] = host
        try:
            (start,) = self._starts_later(Placement((name,), ((),)))
            self._job.launch(dataclasses.replace(start, hosts=(host.number,), host=host.number))
        except (ConfigError, OSError) as error:
            agents.has_problem(host, str(error))
        return host

    def _starts_later(self, placement: Placement) -> List[Start]:
        launcher = launcher_of(self._job.config)
        if launcher.one_by_one:
            return launcher.starts(placement, os.environ)
        raise ConfigError(
            f"--launcher {launcher.name} starts all agents at once, and no other later; start the job by "
            "--launcher ssh, or inside an allocation of Slurm"
        )

    def _send_waiting(self, host: ClusterHost) -> None:
        waiting, host.waiting = host.waiting, []
        for order in waiting:
            place = {"rank": order.incarnation, "slot": order.slot, "slots": order.slots}
            self._agents.post(host.number, {"type": "start", **place, "hosts": len(self._agents.hosts)})

    def let_go(self, incarnation: int) -> None:
        """Let a process leave after its step."""
        leave(self._agents.server, incarnation)

    def signal_process(self, incarnation: int, number: int) -> None:
        """Have a signal sent to a process and to what it has started."""
        for host in self._agents.hosts:
            if incarnation in host.running:
                self._agents.post(host.number, {"type": "end", "rank": incarnation, "number": int(number)})

    def renew_host(self, name: str) -> None:
        """Let a host without processes end, so that a new one takes its place."""
        self._agents.post(self._by_name[name].number, {"type": "renew"})

    def give_up(self) -> None:
        """End all processes, or do not begin."""
        if not self._job.running:
            self._job.problem = self._course.problem
            return
        self._job.end_plan.give_up()

    def tell(self, text: str) -> None:
        """Print a line of ddlrun's own on stderr, behind what the ranks have printed there."""
        self._job.output.tell(text)

    # --- the end ---

    def conclude(self) -> int:
        job = self._job
        summary = self._course.summary()
        if summary:
            print(f"ddlrun: {summary}", file=sys.stderr)
        if job.end_plan.stop_signal or not job.running:
            return self._otherwise.conclude()
        if self._course.problem:
            print(f"ddlrun: {self._course.problem}", file=sys.stderr)
        failed = self._course.failure()
        if failed is None:
            return 1 if self._course.problem else 0
        job.report(failed, None)
        return failed.status

    def close(self) -> None:
        self._course.close()
