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
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ddl.errors import ConfigError
from ddl.launch.agent import grace
from ddl.launch.agent.control import Entrance, assignment_of
from ddl.launch.agent.failures import ends_kept
from ddl.launch.agent.guard import Guard
from ddl.launch.agent.loop import Handlers
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.placement import Placement
from ddl.launch.job.cluster_host import ClusterHost
from ddl.launch.job.cluster_job import ClusterJob, and_give_up
from ddl.launch.job.elastic_course import ElasticCourse
from ddl.launch.job.elastic_events import ProcessEnded, StartProcess
from ddl.launch.job.elastic_store import MOST_HOSTS, elastic_store, leave, lost
from ddl.launch.launchers import Start
from ddl.launch.launchers.reaching import launcher_of
from ddl.net.address import parse_address
from ddl.store.messages import Message
from ddl.store.server import StoreServer

__all__ = ["ElasticClusterJob"]


class ElasticClusterJob(ClusterJob):
    """One elastic job on several hosts. Used once, by the main thread.

    ``starts`` are what starts the agents of the hosts of ``config.placement``; if it has none, the script names hosts.
    """

    def __init__(self, config: RunConfig, starts: Sequence[Start], entrance: Optional[Entrance] = None) -> None:
        super().__init__(config, config.placement, starts, entrance)
        assert config.elastic is not None
        self._options = config.elastic
        self._course = ElasticCourse(config.elastic, config.num_proc, self)
        self._first: List[StartProcess] = []
        self._by_name: Dict[str, ClusterHost] = {}  # of hosts with the same name, the last one
        self._finished = False

    def run(self) -> int:
        """Run the job; return ddlrun's exit status."""
        try:
            return super().run()
        finally:
            self._course.close()

    # --- the beginning ---

    def _prepare(self) -> None:
        """Wait until there are enough slots; then the first processes say which hosts the job begins on."""
        self._course.begin(lambda: self._guard)
        while self._wanted and not self._course.begun:
            self._turn(None)
        if not self._wanted or not self._options.discovery_script:
            return
        ranks: Dict[str, List[int]] = {}
        for order in self._first:
            ranks.setdefault(order.host, []).append(order.incarnation)
        self._placement = Placement(tuple(ranks), tuple(map(tuple, ranks.values())))
        self._starts = launcher_of(self._config).starts(self._placement, os.environ)
        self._hosts = [ClusterHost(number, name, tuple(ranks[name])) for number, name in enumerate(ranks)]

    def _serve(self, secret: bytes) -> StoreServer:
        return elastic_store(
            secret,
            self._placement.size,
            self._options,
            self._course.post,
            host="0.0.0.0",
            port=0 if self._entrance is None else self._entrance.port,
            agents=MOST_HOSTS if self._entrance is None else len(self._hosts),
            from_agent=self._from_agent,
        )

    def _launch(self, secret: bytes) -> None:
        self._secret = secret
        super()._launch(secret)

    def _launch_agents(self, start: Start, secret: bytes, guard: Optional[Guard]) -> None:
        super()._launch_agents(start, secret, None)

    def _gather(self) -> None:
        super()._gather()
        for host in self._hosts:
            self._by_name[host.name] = host
            host.going = self._running
            host.running = set(host.ranks)

    # --- the loop ---

    def _others(self) -> Handlers:
        return {**super()._others(), **(self._course.handlers() if self._goes_on else {})}

    @property
    def _goes_on(self) -> bool:
        return not self._stop_signal and not self._stopping

    @property
    def _coming(self) -> List[ClusterHost]:
        return [host for host in self._hosts if host.due and not host.going and not host.over]

    def _turn(self, until: Optional[float]) -> None:
        # From when the first processes have been ordered until they run, nothing else is.
        ready = self._goes_on and (self._running or not self._course.begun)
        times = [until, *((self._course.deadline(), *(host.due for host in self._coming)) if ready else ())]
        super()._turn(min((time for time in times if time is not None), default=None))
        if not ready or not self._goes_on:
            return
        self._course.look()
        now = time.monotonic()
        for host in self._coming:
            if now >= host.due:
                self._lost(host, f"its agent was not ready within {self._start_timeout:g} s (--start-timeout)")
        if self._running and self._course.over and not self._finished:
            self._finish()

    def _finish(self) -> None:
        """All processes have ended, and none will come: let the agents end."""
        self._finished = True
        for host in self._hosts:
            if host.going:
                self._server.post(host.number, {"type": "finish"})
            else:
                self._server.post(host.number, {"type": "signal", "number": int(signal.SIGTERM)})
                host.done = True  # whatever becomes of it

    def _heard(self, host: ClusterHost, message: Message) -> None:
        kind = message["type"]
        if kind == "hello" and host.over and self._is_awaited(host):
            host = host.returned(time.monotonic() + self._start_timeout)
            self._hosts[host.number] = self._by_name[host.name] = host
        super()._heard(host, message)
        if kind == "gone" and host.name in self._options.returning:
            if host.done and host.running and not self._finished:
                self._lost(host, "its agent has ended, and was told too late to start a process")
            host.unasked = dict.fromkeys(host.unasked, 0)  # a new agent has not said that
            self._server.readmit(host.number)
        elif kind == "leaving" and self._goes_on:
            self._course.host_leaves(host.name, message["text"])
        elif kind == "started":
            self.tell(f"rank {message['rank']} (host {host.name}, pid {message['pid']}) was started")
        elif kind == "failed":
            host.running.discard(message["rank"])
            self.tell(f"host {host.name}: {message['text']}")
            self._course.post(ProcessEnded(message["rank"], False, f"host {host.name}: {message['text']}"))
        elif self._running and not host.going and not host.over:
            if kind == "hello":
                misfit = host.misfit()
                if misfit:
                    self._lost(host, misfit)
                else:
                    assignment = assignment_of(self._config, self._placement, host.number, host.returns)
                    self._server.post(host.number, assignment.message())
            elif kind == "ready":
                first = self._hosts[0].said["ready"]
                address, _ = parse_address(first["address"])
                self._go(host, address, first["port"])
                host.going = True
                self._send_waiting(host)
                if host.returns and self._goes_on:
                    self._course.host_returned(host.name)

    def _is_awaited(self, host: ClusterHost) -> bool:
        return self._running and self._goes_on and not self._finished and host.name in self._options.returning

    def _exited(self, host: ClusterHost, message: Mapping[str, Any]) -> None:
        entry = self._take_note(host, message)
        host.running.discard(entry.rank)
        self._ends.keep_last(ends_kept(self._placement.size))
        if self._goes_on:
            self._course.process_ended(entry)
        if entry.failed:
            self._dumps.ask_now(self._recording, wanted=False)

    def _lost(self, host: ClusterHost, reason: str) -> None:
        if not self._running:
            return super()._lost(host, reason)
        host.gone = reason
        waiting, host.waiting = {order.incarnation for order in host.waiting}, []
        for incarnation in host.running - waiting:
            how = f"rank {incarnation} was lost with host {host.name}: {reason}"
            lost(self._server, incarnation, f"{how},")
            self._display.forget(incarnation, how)
        host.running = set()
        if self._goes_on and not self._finished:
            self.tell(f"host {host.name} is lost: {reason}")
            self._course.host_failed(host.name, reason)

    @property
    def _running_ranks(self) -> int:
        return sum(len(host.running) for host in self._hosts)

    # --- ElasticRanks ---

    def start_process(self, order: StartProcess) -> None:
        """Have the host's agent start a process, and start the agent if there is none."""
        if not self._running:
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
        host = ClusterHost(len(self._hosts), name, (), due=time.monotonic() + self._start_timeout)
        self._hosts.append(host)
        self._by_name[name] = host
        try:
            (start,) = self._starts_later(Placement((name,), ((),)))
            start = dataclasses.replace(start, hosts=(host.number,), host=host.number)
            self._launch_agents(start, self._secret, None)
        except (ConfigError, OSError) as error:
            self._news.append((host.number, {"type": "problem", "text": str(error)}))
        return host

    def _starts_later(self, placement: Placement) -> List[Start]:
        launcher = launcher_of(self._config)
        if launcher.one_by_one:
            return launcher.starts(placement, os.environ)
        raise ConfigError(
            f"--launcher {self._config.launcher} starts all agents at once, and no other later; start the job by "
            "--launcher ssh, or inside an allocation of Slurm"
        )

    def _send_waiting(self, host: ClusterHost) -> None:
        waiting, host.waiting = host.waiting, []
        for order in waiting:
            place = {"rank": order.incarnation, "slot": order.slot, "slots": order.slots}
            self._server.post(host.number, {"type": "start", **place, "hosts": len(self._hosts)})

    def let_go(self, incarnation: int) -> None:
        """Let a process leave after its step."""
        leave(self._server, incarnation)

    def signal_process(self, incarnation: int, number: int) -> None:
        """Have a signal sent to a process and to what it has started."""
        for host in self._hosts:
            if incarnation in host.running:
                self._server.post(host.number, {"type": "end", "rank": incarnation, "number": int(number)})

    def renew_host(self, name: str) -> None:
        """Let a host without processes end, so that a new one takes its place."""
        self._server.post(self._by_name[name].number, {"type": "renew"})

    def give_up(self) -> None:
        """End all processes, or do not begin."""
        if not self._running:
            self._problem = self._course.problem
            return
        self._signals_due = and_give_up(grace.when_given_up(time.monotonic(), self._config.grace))

    # --- the end ---

    def _conclude(self) -> int:
        summary = self._course.summary()
        if summary:
            print(f"ddlrun: {summary}", file=sys.stderr)
        if self._stop_signal or not self._running:
            return super()._conclude()
        if self._course.problem:
            print(f"ddlrun: {self._course.problem}", file=sys.stderr)
        failed = self._course.failure()
        if failed is None:
            return 1 if self._course.problem else 0
        self._report(failed, None)
        return failed.status
