"""A job on several hosts, on ddlrun's side: it starts agents, gives them their ranks, and ends them.

One thread runs one loop, as in host_ranks.py. What agents say wakes it (host_agents.py). No rank starts before every
host's agent has called and every host is fit (gathering.py). The job ends as a job on one machine does. What comes of a
rank that fails and of a host that is lost says its course: fixed_cluster.py, or elastic_cluster.py.
"""

from __future__ import annotations

import contextlib
import select
import signal
import sys
from functools import partial
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ddl import clock
from ddl.launch.agent import grace
from ddl.launch.agent.control import Entrance, gone_since
from ddl.launch.agent.dumps import KeptDumps, keep_dumps
from ddl.launch.agent.end_plan import EndPlan
from ddl.launch.agent.failures import Exit
from ddl.launch.agent.guard import Guard
from ddl.launch.agent.host_ranks import LAST_OUTPUT
from ddl.launch.agent.loop import catch_signals, drain, wait_once
from ddl.launch.agent.output import Sink
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.placement import Placement
from ddl.launch.job.cluster_course import ClusterCourse
from ddl.launch.job.cluster_dumps import ClusterDumps
from ddl.launch.job.cluster_host import ClusterHost
from ddl.launch.job.gathering import Gathering
from ddl.launch.job.host_agents import HostAgents
from ddl.launch.job.job_display import JobDisplay
from ddl.launch.job.job_output import JobOutput
from ddl.launch.job.rank_ends import RankEnds
from ddl.launch.launchers import Start
from ddl.launch.timeline.cluster_timeline import ClusterTimeline
from ddl.net.address import family_of
from ddl.net.encryption import prepare_encryption
from ddl.net.rails import common_family
from ddl.records.dump import RankDump
from ddl.records.sample import RankSample
from ddl.store.messages import Message

__all__ = ["ClusterJob"]


class ClusterJob:
    """One job on several hosts, from its start to its end. Used once, by the main thread.

    ``starts`` are what starts the agents of the hosts of ``placement``. A ``patient`` job asks every host before it
    gives up, so that afterwards ``problems`` tells of each that is unfit and not only of the first. ``sinks`` are where
    the job's output and errors go. ``course``: makes what says how ranks come and go.
    """

    display: JobDisplay  #: from when the job runs

    def __init__(
        self,
        config: RunConfig,
        placement: Placement,
        starts: Sequence[Start],
        entrance: Optional[Entrance] = None,
        *,
        patient: bool = False,
        sinks: Optional[Tuple[Sink, Sink]] = None,
        course: Callable[[ClusterJob], ClusterCourse],
    ) -> None:
        settings = config.settings
        prepare_encryption(settings.encrypt, settings.openssl)  # what is missing is said before anything starts
        self.config = config
        self._patient = patient
        self.output = JobOutput(config, sinks)
        self.agents = HostAgents(config, entrance, self.output.sinks)
        self.begin_on(placement, starts)
        self.ends = RankEnds()
        self.running = False  #: ranks have been started
        self.problem = ""  #: why the job never began, or what failed that is no rank
        self.end_plan = EndPlan(config.grace, gives_up=True)
        self.verdict: Optional[Message] = None  #: the first one of the store, when all is over
        self._dumps = ClusterDumps(self.agents.post)
        self._timeline = ClusterTimeline.of(config, self.output.tell, self.agents.post)
        self._course = course(self)

    def begin_on(self, placement: Placement, starts: Sequence[Start]) -> None:
        """Let the job begin on these hosts, as far as it has not begun."""
        self.placement = placement
        self._starts = starts
        self.agents.hosts = [
            ClusterHost(number, name, placement.ranks[number]) for number, name in enumerate(placement.hosts)
        ]

    @property
    def problems(self) -> Dict[int, str]:
        """Why hosts, by number, could not take part, or not until the end."""
        return {host.number: host.gone for host in self.agents.hosts if host.gone}

    def run(self) -> int:
        """Run the job; return ddlrun's exit status."""
        with contextlib.closing(self._course):
            self._run()
            return self.display.job_ended(self._course.conclude(), self.verdict)

    def _run(self) -> None:
        self.guard = guard = Guard()
        self._woken, restore = catch_signals()
        self.agents.open()
        self.display = JobDisplay(self.config, self.output.sinks, self._dump_wanted, self._sample)
        if self.display.requests.problem:
            self.output.say(self.display.requests.problem)
        try:
            self.display.open()
            self._course.prepare()
            if self.wanted:
                with self._course.make_store() as server:
                    self.agents.server = server
                    for start in self._starts:
                        self.launch(start)
                    server.start()
                    self._gather()
                    self._supervise()
                    self._last_output()
                self.verdict = server.first_failure
        finally:
            self.agents.end_launches()
            self.display.close()
            if self._timeline is not None:
                self._timeline.close()
            self.output.write_out()
            guard.dismiss()
            restore()
            self.agents.close()

    # --- the beginning ---

    def launch(self, start: Start) -> None:
        """Start agents."""
        self.agents.launch(start, None if self._course.outlived else self.guard)
        self.output.say(f"{start.label}: {' '.join(start.command)}")

    def _gather(self) -> None:
        """Let every host prove fit, and let the fit ones start their ranks."""
        Gathering(self, patient=self._patient).run()
        if self.wanted:
            self.running = True
            for host in self.agents.hosts:
                self.go(host)
            self.display.started()
        else:
            self._signal(signal.SIGTERM)
        self._course.gathered()

    def go(self, host: ClusterHost) -> None:
        """Let a host start its ranks."""
        first = self.agents.hosts[self.placement.host_of(0)]
        family = common_family([other.ips for other in self.agents.hosts if other.ips])  # as that of the ranks' data
        address = next((each for each in first.ips if family_of(each) == family), first.ips[0])
        self.agents.post(host.number, {"type": "go", "address": address, "port": first.said["ready"]["port"]})
        if self.display.sampling:
            self.agents.post(host.number, {"type": "sample", "rails": self.display.shows_rails})
        if self._timeline is not None:
            self._timeline.begin(host.number, clock.now())

    def _sample(self) -> None:
        """Have the hosts on which ranks run send samples from now on."""
        for host in self._recording:
            self.agents.post(host.number, {"type": "sample", "rails": self.display.shows_rails})

    @property
    def wanted(self) -> bool:
        """Whether there is no problem, and nobody has stopped the job."""
        return not self.problem and not self.end_plan.stop_signal

    @property
    def _recording(self) -> List[ClusterHost]:
        """The hosts on which there may be ranks."""
        return [host for host in self.agents.hosts if self.running and not host.over]

    # --- the loop ---

    def _supervise(self) -> None:
        while self.running and not all(host.over for host in self.agents.hosts):
            self.turn(self.end_plan.next)

    def turn(self, until: Optional[float]) -> None:
        """Wait for something to do, at most ``until``, and do it."""
        handlers: Dict[int, Tuple[int, Callable[[], None]]] = {
            self._woken.fileno(): (select.POLLIN, lambda: None),
            **self.agents.handlers(),
            **self.display.requests.handlers(),
            **self._course.handlers(),
        }
        for sink in self.output.sinks:
            if sink.waiting:
                handlers[sink.fd] = (select.POLLOUT, partial(self._write, sink))
        times = (until, self._course.deadline())
        wait_once(handlers, self._dumps.deadline(min((time for time in times if time is not None), default=None)))
        for number in drain(self._woken):
            if number == signal.SIGCHLD:
                for host, last in self.agents.never_called():
                    self.lost(host, last)
            elif number == signal.SIGQUIT:
                self._dump_wanted()
            elif number in grace.FORWARDED:
                self._forward(number)
            else:
                self.end_plan.stop(number)
        for host, message in self.agents.news():
            self._heard(host, message)
        self.agents.confirm_output()
        if self._dumps.complete(self.agents.hosts):
            dumps = self._dumps.take()
            kept = self._keep_dumps(dumps, None)
            if dumps or self._dumps.wanted:
                self.output.tell(*kept.lines)
            self.display.requests.answer(kept.message)
        while self.end_plan.is_due:
            self._signal(self.end_plan.take())
        self._course.turned()

    def _write(self, sink: Sink) -> None:
        if not sink.write_some():
            self.end_plan.stop(signal.SIGPIPE)  # nobody reads our output any more

    def _heard(self, host: ClusterHost, message: Message) -> None:
        host = self._course.whose(host, message)
        kind = message["type"]
        if kind == "gone":
            if not host.over:
                self.lost(host, gone_since(message["silent"], message["why"]))
        elif kind in ("hello", "ready", "met"):
            host.said[kind] = message
            if kind == "hello":
                self.output.say(f"host {host.name} is {message['name']}, Python {message['python']}")
        elif kind == "out":
            data = message["data"].encode("latin-1")
            self.output.sinks[message["stream"] - 1].put(data, host.source(message["source"]))
            host.unasked[message["stream"]] += len(data)
        elif kind == "say":
            self.output.say(f"host {host.name}: {message['text']}")
        elif kind == "exit":
            self._course.exited(host, self._take_note(host, message))
        elif kind == "problem":
            self.lost(host, message["text"])
        elif kind == "samples" and not host.over:
            samples, server = [RankSample.parse(sample) for sample in message["ranks"]], self.agents.server
            self.display.take(samples, self._course.running_ranks, server.late, server.first_failure)
        elif kind in ("operations", "clock") and self._timeline is not None:
            self._timeline.heard(host.number, host.name, message, message["received"])
            self._timeline.verdict(self.agents.server.first_failure)
        elif kind in ("record", "recorded"):
            self._dumps.heard(host, message)
        elif kind == "done":
            host.done = True
        self._course.heard(host, message)

    def _take_note(self, host: ClusterHost, message: Message) -> Exit:
        """Keep how a rank has ended, and tell the store."""
        entry = self.ends.add(host, message, self.end_plan.begun)
        self.agents.server.ended(entry.rank, str(entry))
        self.display.forget(entry.rank, str(entry))
        if self._timeline is not None and entry.failed:
            self._timeline.note(str(entry))
        return entry

    def lost(self, host: ClusterHost, reason: str) -> None:
        """A host cannot take part, or not any more."""
        host.gone = reason
        if self.running:
            self._course.lost(host, reason)
        elif not self.problem:
            self.problem = f"{host.label}: {reason}"

    def _dump_wanted(self) -> None:
        """Somebody wants to know what the ranks do now."""
        if self.running:
            self.dump_now(wanted=True)
            return
        text = "no rank runs yet"
        self.output.tell(text)
        self.display.requests.answer({"folder": "", "text": text})

    def dump_now(self, *, wanted: bool) -> None:
        """Ask the ranks what they do now. ``wanted``: by a user."""
        self._dumps.ask_now(self._recording, wanted=wanted)

    def stop_soon(self) -> None:
        """Something failed: the others get a moment to fail by themselves, and say so."""
        if self.end_plan.fail():
            self._dumps.ask_at_end(self._recording)

    def _forward(self, number: int) -> None:
        """Pass a signal on to the ranks that means something to the program alone."""
        self.agents.post_all(lambda _: {"type": "forward", "number": number})

    def _signal(self, number: int) -> None:
        """Let every agent stop its ranks by a signal; 0: give up on agents that are still there."""
        self.end_plan.begun = True
        for host in self.agents.hosts:
            if number:
                self.agents.post(host.number, {"type": "signal", "number": int(number)})
            elif not host.over:
                self.lost(host, "its agent does not answer")

    # --- the end, and what the user reads ---

    def _last_output(self) -> None:
        self.display.hide()
        end = clock.now() + LAST_OUTPUT
        plan = self.end_plan
        while any(sink.waiting for sink in self.output.sinks) and not (plan.stop_signal and clock.now() >= end):
            self.turn(end if plan.stop_signal else None)

    def report(self, failed: Exit, verdict: Optional[Message]) -> None:
        """Say that the job has failed."""
        print(self.ends.report(failed, verdict, self.output.last_on_stderr), file=sys.stderr)
        self.tell_dumps(failed)

    def tell_dumps(self, failed: Optional[Exit]) -> None:
        """Write the dumps that have come, and tell where."""
        dumps = self._dumps.take()
        if dumps:
            kept = self._keep_dumps(dumps, failed)
            kept.print()
            self.display.tell(kept.lines)

    def _keep_dumps(self, dumps: Sequence[RankDump], failed: Optional[Exit]) -> KeptDumps:
        """Write the dumps, if there are any."""
        end = self.ends.job_end(self.placement.size, self.agents.server.first_failure, failed)
        return keep_dumps(self.config.dump_dir, dumps, end)
