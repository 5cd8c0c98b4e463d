"""Runs the probes on the hosts, as ddlrun would run a job there, and makes one ``Facts`` of what they print.

A host on which nothing can be started is a fact, too: it is noted with the reason, and the others are asked again
without it. For the main thread only (ClusterJob catches signals). The probes get at most ``limit`` seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from typing import IO, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ddl.bootstrap.environ import Settings
from ddl.bootstrap.launched import detect
from ddl.errors import ConfigError
from ddl.launch.agent.output import Sink
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.hosts import Host as NamedHost
from ddl.launch.ask.placement import Placement, place
from ddl.launch.cli import choose_launcher, read_hosts
from ddl.launch.job.cluster_job import ClusterJob
from ddl.launch.job.fixed_cluster import FixedClusterCourse
from ddl.launch.launchers.reaching import REACHING, launcher_of
from ddl.tools.doctor.facts import Facts, HostFacts, HostLink, Local, Task, link_from_json, local_from_json
from ddl.tools.doctor.probe import MARK
from ddl.tools.progress import Progress

__all__ = ["Stopped", "SurveyRequest", "add_host_arguments", "request", "survey"]

_RANKS = 2  #: per host where nobody says otherwise: so many it takes to see whether they share memory


class Stopped(Exception):
    """Somebody stopped the survey; ``status`` is what a shell expects then."""

    def __init__(self, status: int) -> None:
        super().__init__(f"stopped with status {status}")
        self.status = status


@dataclass(frozen=True)
class SurveyRequest:
    """What to survey, after all checks."""

    placement: Placement
    launcher: str
    interface: str
    patience: float
    script: str = ""
    ranks_given: bool = True  #: as of Facts


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which hosts, spelled as ddlrun's."""
    parser.add_argument("-H", "--host", "--hosts", dest="hosts", metavar="HOST[:SLOTS],...", help="hosts to look at")
    parser.add_argument("--hostfile", "--machinefile", metavar="FILE", help="the same from a file, as ddlrun reads it")
    parser.add_argument(
        "-np", "--num-proc", type=int, metavar="N", help="ranks in all; without: all slots, or two per host"
    )
    parser.add_argument("--launcher", default="auto", metavar="NAME", help="ssh, mpi or slurm, as for ddlrun")
    parser.add_argument(
        "--network-interface", "--network-interfaces", dest="interface", default="", metavar="NAME|CIDR",
        help="interface that the job would use on every host; without: the one that leads here",
    )  # fmt: skip
    parser.add_argument(
        "--start-timeout", type=float, default=30.0, metavar="SECONDS", help="wait so long for a host to answer (30)"
    )


def request(arguments: argparse.Namespace, program: Sequence[str] = ()) -> SurveyRequest:
    """Return what the options ask for; ConfigError says what is wrong with them."""
    environ = dict(os.environ)
    if not 0 < arguments.start_timeout < 1e6:
        raise ConfigError(f"--start-timeout {arguments.start_timeout:g}: it must be a number of seconds above 0")
    if arguments.num_proc is not None and arguments.num_proc < 1:
        raise ConfigError(f"-np {arguments.num_proc}: it must be a whole number from 1 up")
    launcher = choose_launcher(arguments.launcher, environ)
    if launcher not in REACHING:
        raise ConfigError(f"--launcher {launcher}: hosts are asked over one of {', '.join(REACHING)}; choose one")
    hosts = read_hosts(arguments.hosts, arguments.hostfile, launcher, environ)
    if not hosts:
        hosts = (NamedHost("localhost", _ranks_of_job(environ)),)
    ranks_given = arguments.num_proc is not None or hosts[0].slots is not None
    if not ranks_given:
        hosts = tuple(NamedHost(host.name, _RANKS) for host in hosts)
    placement = place(hosts, arguments.num_proc)
    Settings.from_environ(environ)  # every probe would find the same mistake
    script = next((word for word in program if word.endswith(".py")), "")
    return SurveyRequest(placement, launcher, arguments.interface, arguments.start_timeout, script, ranks_given)


def _ranks_of_job(environ: Mapping[str, str]) -> Optional[int]:
    """Return how many ranks the job that this is run in has on this host; None: this is run by itself."""
    own = environ.get("DDL_LOCAL_SIZE", "")
    if own.isdecimal() and int(own):
        return int(own)
    with contextlib.suppress(ConfigError):  # variables that make no sense to a job are no affair of a look at hosts
        process = detect(environ)
        return None if process is None else process.local_size
    return None


@dataclass
class _ProbeResults:
    """What the probes have said, by host numbers of the request."""

    locals: Dict[int, Local] = field(default_factory=dict)
    finished: List[int] = field(default_factory=list)
    links: List[HostLink] = field(default_factory=list)
    groups: Optional[Tuple[Tuple[int, ...], ...]] = None
    groups_problem: str = ""


def _progress(part: Placement) -> Progress:
    """Every host looks at itself, measures the way to every other one, and says that it has finished."""
    hosts = len(part.hosts)
    return Progress(hosts * (hosts + 1), after=5.0, name="ddl doctor")


class _Watched(Sink):
    """The file that probes write to; each thing that they find is a step on the way."""

    def __init__(self, fd: int, progress: Progress, hosts: Sequence[str]) -> None:
        super().__init__(fd)
        self._progress = progress
        self._hosts = hosts
        self._seen: Set[str] = set()

    def put(self, data: bytes, source: object) -> None:
        """Queue whole lines of one source."""
        super().put(data, source)
        for line in data.decode(errors="replace").splitlines():
            what = self._step_text(json.loads(line[len(MARK) :])) if line.startswith(MARK) else ""
            if what and what not in self._seen:  # a link of each rail
                self._seen.add(what)
                self._progress.step(what)

    def _step_text(self, record: Mapping[str, Any]) -> str:
        if record["kind"] == "link":
            ends = (self._hosts[record["link"][end]] for end in ("source", "target"))
            return f"measured {' to '.join(ends)}"
        if record["kind"] in ("local", "finished"):
            done = "has finished" if record["kind"] == "finished" else "has looked at itself"
            return f"host {self._hosts[record['host']]} {done}"
        return ""


def survey(wanted: SurveyRequest) -> Facts:
    """Find out everything. ConfigError if there is no launcher; Stopped by a signal."""
    placement, problems = wanted.placement, {}  # type: Placement, Dict[int, str]
    seen, failure = _ProbeResults(), ""
    while len(problems) < len(placement.hosts):
        present = [number for number in range(len(placement.hosts)) if number not in problems]
        seen, gone, failure = _run(wanted, present)
        problems.update(gone)
        if not gone or any(number in seen.locals for number in gone):
            break
        failure = ""  # nothing has begun, as some host was unfit: once more without it
    hosts = tuple(
        HostFacts(
            number,
            name,
            placement.ranks[number],
            problems.get(number, "") if number not in seen.locals else "",
            seen.locals.get(number),
            number in seen.finished,
        )
        for number, name in enumerate(placement.hosts)
    )
    connections = Settings.from_environ().connections
    return Facts(
        hosts,
        tuple(seen.links),
        seen.groups,
        seen.groups_problem,
        failure,
        wanted.script,
        connections,
        wanted.ranks_given,
    )


def _run(wanted: SurveyRequest, present: Sequence[int]) -> Tuple[_ProbeResults, Dict[int, str], str]:
    """Run one job on the hosts with these numbers; return what was found, who was lost and how it ended."""
    whole = wanted.placement
    part = place([NamedHost(whole.hosts[at], len(whole.ranks[at])) for at in present], None)
    task = Task(whole.hosts, os.getcwd(), wanted.script, patience=wanted.patience)
    config = RunConfig(
        num_proc=part.size,
        command=(sys.executable, "-m", "ddl.tools.doctor.probe", task.text()),
        environ=(("DDL_START_TIMEOUT", f"{wanted.patience:g}"),),
        prefix=False,
        placement=part,
        launcher=wanted.launcher,
        directory="/",  # the job's own may be missing on some host, which shall be one fact of many
        interface=wanted.interface,
    )
    starts = launcher_of(config).starts(part, os.environ)
    said = io.StringIO()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, _progress(part) as progress:
        sinks = (_Watched(out.fileno(), progress, part.hosts), Sink(err.fileno()))
        job = ClusterJob(config, part, starts, patient=True, sinks=sinks, course=FixedClusterCourse)
        with _alarm(limit(len(present), wanted.patience)), contextlib.redirect_stderr(said):
            status = job.run()
        last = _last_lines(err)
        seen = _read(out, present, [rank for at in present for rank in whole.ranks[at]])
    if status > 128 and status - 128 in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        raise Stopped(status)
    gone = {present[number]: reason for number, reason in job.problems.items()}
    failure = ""
    if status == 128 + signal.SIGALRM:
        failure = f"measuring was not over after {limit(len(present), wanted.patience):g} s"
    elif status:
        failure = "; ".join([*said.getvalue().strip().splitlines(), *last])
    return seen, gone, failure


def _last_lines(err: IO[bytes]) -> List[str]:
    err.seek(0)
    lines = err.read().decode(errors="replace").split("\n")
    return [line.strip() for line in lines if line.strip()][-3:]


def limit(hosts: int, patience: float) -> float:
    """Return the seconds after which a run is ended: several times what it takes where all is well."""
    return 20 + 3 * patience + hosts * (hosts - 1)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Let SIGALRM come after so long, by which ClusterJob stops as by any signal that it did not expect."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _read(out: IO[bytes], hosts: Sequence[int], ranks: Sequence[int]) -> _ProbeResults:
    """Read what the probes printed. They know hosts and ranks by their numbers in this run, we by the request's."""
    seen = _ProbeResults()
    out.seek(0)
    for line in out.read().decode(errors="replace").splitlines():
        if not line.startswith(MARK):
            continue  # some library greets
        record: Dict[str, Any] = json.loads(line[len(MARK) :])
        kind = record["kind"]
        if kind == "local":
            local = local_from_json(record["local"])
            routes = {str(hosts[int(number)]): source for number, source in local.routes.items()}
            seen.locals[hosts[record["host"]]] = dataclasses.replace(local, routes=routes)
        elif kind == "finished":
            seen.finished.append(hosts[record["host"]])
        elif kind == "link":
            link = link_from_json(record["link"])
            seen.links.append(dataclasses.replace(link, source=hosts[link.source], target=hosts[link.target]))
        elif "groups" in record:
            seen.groups = tuple(tuple(ranks[rank] for rank in group) for group in record["groups"])
        else:
            seen.groups_problem = seen.groups_problem or record["problem"]
    return seen
