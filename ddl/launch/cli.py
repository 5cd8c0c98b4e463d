"""The command line of ``ddlrun``: turns arguments into a checked ``RunConfig``. Bad usage ends with status 2.

Options of ddlrun come before the program. The program's name and all that follows belong to the program.
Long options may have one dash or two, as users of mpirun and of IBM's ddlrun expect.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from typing import Dict, List, Optional, Sequence, Tuple, Type, Union

from ddl.bootstrap.environ import Settings
from ddl.errors import ConfigError, Error
from ddl.launch.agent.processes import open_standard_streams
from ddl.launch.ask import horovod_only
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.config_file import options_from
from ddl.launch.ask.elastic_options import check_company, elastic_options, smallest_size
from ddl.launch.ask.hosts import Host, parse_hostfile, parse_hosts
from ddl.launch.ask.jax import variables_for_jax
from ddl.launch.ask.layout import JobLayout, arrange
from ddl.launch.ask.listening import ListeningAddress
from ddl.launch.ask.numbers import seconds, whole_number
from ddl.launch.ask.options import FOR_MANIFEST, OPTIONS, USAGE, parser, values_of
from ddl.launch.ask.placement import Placement, parse_rankfile, place
from ddl.launch.ask.program import in_image, words_of
from ddl.launch.job import dry_run, pods
from ddl.launch.job.cluster_job import ClusterJob
from ddl.launch.job.elastic_cluster import ElasticClusterCourse
from ddl.launch.job.elastic_local import ElasticLocalCourse
from ddl.launch.job.fixed_cluster import FixedClusterCourse
from ddl.launch.job.local_job import FixedLocalCourse, LocalJob
from ddl.launch.launchers import Launcher, Start, k8s
from ddl.launch.launchers.in_pods import IN_PODS
from ddl.launch.launchers.reaching import REACHING, launcher_of
from ddl.launch.launchers.slurm import SlurmLauncher
from ddl.launch.launchers.ssh import SshLauncher
from ddl.text.spelling import did_you_mean

__all__ = ["choose_launcher", "main", "parse", "read_hosts", "run"]

_ALIASES = {"-np": "--num-proc", "-n": "--num-proc"}
_VARIABLES = {
    "--timeout": "DDL_TIMEOUT",
    "--start-timeout": "DDL_START_TIMEOUT",
    "--host-timeout": "DDL_HOST_TIMEOUT",
}
_MAYBE = {name for names, keywords in OPTIONS if keywords.get("nargs") == "?" for name in names}  # have a value, or not
_ABOUT_RANKS = ("-np", "--np", "-n", "--num-proc", "-H", "--hosts", "--hostfile")
_NUMBERS = ("num_proc", "accelerators", "nodes", "racks", "aisles")

_LAUNCHERS: Dict[str, Type[Launcher]] = {**REACHING, **IN_PODS}


def _split(argv: Sequence[str]) -> Tuple[List[str], List[str], List[str]]:
    """Part ddlrun's options, in the spelling that the parser knows, from the program and its arguments.

    Last come the options of horovodrun's that have no effect.
    """
    count = {name: values_of(keywords) for names, keywords in OPTIONS for name in names}
    count.update(horovod_only.OPTIONS)
    spelling = {name: name for name in count}
    spelling.update({name[1:]: name for name in count if name.startswith("--")})
    spelling["--np"] = "-np"
    options: List[str] = []
    idle: List[str] = []
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        name, equals, value = rest.pop(0).partition("=")
        if name not in spelling:
            raise ConfigError(f"unknown option {name}{did_you_mean(name, count)}")
        name = spelling[name]
        if equals and not count[name] and name not in _MAYBE:
            raise ConfigError(f"option {name} takes no value, but {value!r} was given")
        values = value.split(",", max(1, count[name]) - 1) if equals else []  # LO,HI in a file of options
        while len(values) < count[name]:
            if not rest:
                raise ConfigError(f"option {name} needs a value")
            values.append(rest.pop(0))
        words = ["=".join([_ALIASES.get(name, name), *values])] if len(values) < 2 else [name, *values]
        if name in horovod_only.OPTIONS:
            words = [horovod_only.word(name, values)]
        if words[0]:
            _check_value(" ".join([name, *values]), words[0])
            options += words
        else:
            idle.append(name)
    return options, rest[1:] if rest[:1] == ["--"] else rest, idle


def _check_value(given: str, word: str) -> None:
    """Refuse what would set a variable to nonsense, and name what the user wrote (``given``), not the variable."""
    name, _, value = word[len("--env=") :].partition("=") if word.startswith("--env=") else word.partition("=")
    problem = Settings.problem_with(_VARIABLES.get(name, name), value)
    if problem:
        raise ConfigError(f"{given}: it must be {problem}")


def parse(argv: Sequence[str], environ: Dict[str, str]) -> RunConfig:
    """Return what ``argv`` asks for; ConfigError says what is wrong with it."""
    options, program, idle = _split(argv)
    given = parser().parse_args(options)
    if given.config_file is not None:
        here = given
        try:
            from_file, _, more_idle = _split(options_from(given.config_file))
        except ConfigError as error:
            raise ConfigError(f"--config-file {given.config_file}: {error}") from error
        given = parser().parse_args([*from_file, *options])
        given.interface = here.interface or given.interface
        idle += more_idle
    launcher = choose_launcher(given.launcher, environ)
    _check_pod_options(given, launcher)
    check_company(vars(given))
    _check_script(given, launcher)
    head, pod_job = "", None
    if launcher in IN_PODS:
        count = whole_number("--pods", given.pods) or 1
        pod_job = IN_PODS[launcher].pod_job(vars(given), count)
        head = given.head if pod_job is None else k8s.head(pod_job)
        size = whole_number("-np", given.num_proc) or count
        if size < count:
            raise ConfigError(f"-np {size} is less than --pods {count}: every pod needs a rank; take fewer pods")
        layout = arrange(pods.hosts(head, count), None, num_proc=size, mode=given.mode)
        hosts = _filled(layout.placement)
        returning = hosts[1:]  # pod 0 is where ddlrun runs
    else:
        try:
            layout, hosts = _layout(given, launcher, environ)
        except ConfigError as error:
            raise ConfigError(f"{error}{_behind_program(given, program)}") from error
        returning = ()
    elastic = elastic_options(vars(given), environ, layout.size, hosts, returning)
    if elastic is not None and elastic.max_np is not None:
        most = min(elastic.max_np, sum(host.slots or 0 for host in hosts))
        if most > layout.size:  # it begins on all slots that it may use
            layout = JobLayout(most, place(hosts, most), layout.environ)
    extra = {**layout.environ, **_environ(given.env, environ)}
    for name, variable in _VARIABLES.items():
        value = getattr(given, name[2:].replace("-", "_"))
        if value is not None:
            extra[variable] = value
    if given.rebalance:
        extra["DDL_REBALANCE"] = "1"
    if given.encrypt:
        extra["DDL_ENCRYPT"] = "1"
    if given.checksum:
        extra["DDL_CHECKSUM"] = "1"
    if given.jax:
        extra.update(variables_for_jax({**environ, **extra}, in_image=pod_job is not None))
    if given.timeline_mb is not None and given.timeline is None:
        raise ConfigError("--timeline-mb bounds the file of --timeline; say --timeline FILE, or leave it out")
    Settings.from_environ({**environ, **extra}).check()  # every rank would find the same mistake: find it once, before
    return RunConfig(
        num_proc=layout.size,
        command=words_of(program, {**environ, **extra}) if pod_job is None else in_image(program),
        environ=tuple(extra.items()),
        output_dir=given.output_dir,
        grace=seconds("--grace", given.grace),
        dump_dir=given.dump_dir,
        timeline=given.timeline,
        timeline_mb=whole_number("--timeline-mb", given.timeline_mb) or 200,
        dashboard=_listening("--dashboard", given.dashboard, any_port=True),
        history=given.history,
        quiet=given.quiet,
        metrics=_listening("--metrics", given.metrics),
        prefix=not given.no_prefix,
        verbose=given.verbose,
        placement=layout.placement,
        launcher=launcher,
        interface=",".join(given.interface),
        timestamps=given.prefix_timestamp,
        ssh_options=_ssh_options(given, launcher),
        notes=tuple(horovod_only.no_effect(idle)),
        dry_run=given.dry_run,
        elastic=elastic,
        head=head,
        pod_job=pod_job,
    )


def _listening(option: str, text: Optional[str], *, any_port: bool = False) -> Optional[ListeningAddress]:
    return None if text is None else ListeningAddress.parse(option, text, any_port=any_port)


def _ssh_options(given: argparse.Namespace, launcher: str) -> Tuple[str, ...]:
    port, key = whole_number("--ssh-port", given.ssh_port), given.ssh_identity_file
    if "--ssh-port" not in _LAUNCHERS[launcher].takes and (port or key):
        raise ConfigError(f"--ssh-port and --ssh-identity-file are for --launcher ssh, and this is {launcher}")
    return (*(("-p", str(port)) if port else ()), *(("-i", key) if key else ()))


def _check_pod_options(given: argparse.Namespace, launcher: str) -> None:
    """Refuse options of pods that the launcher would ignore, and a launcher of pods without what it needs."""
    for name in ("--pods", "--head", *(names[0] for names, _ in FOR_MANIFEST)):
        if getattr(given, name[2:].replace("-", "_")) and name not in _LAUNCHERS[launcher].takes:
            meant = " or ".join(other.name for other in IN_PODS.values() if name in other.takes)
            raise ConfigError(f"{name} is for --launcher {meant}, and this is --launcher {launcher}; leave it out")
    if launcher in IN_PODS:
        IN_PODS[launcher].check(vars(given))


def _check_script(given: argparse.Namespace, launcher: str) -> None:
    """Refuse a script that names hosts where the launcher cannot reach them."""
    if not given.discovery_script or "--host-discovery-script" in _LAUNCHERS[launcher].takes:
        return
    if launcher in IN_PODS:
        raise ConfigError(
            f"--host-discovery-script: with --launcher {launcher}, Kubernetes chooses the hosts; say --pods N, and "
            "leave the script out"
        )
    raise ConfigError(
        f"--host-discovery-script needs --launcher ssh, as {launcher} reaches no host that comes later; "
        "name the hosts by -H instead"
    )


def choose_launcher(name: str, environ: Dict[str, str]) -> str:
    """Return the launcher that ``name``, perhaps "auto", means here; ConfigError if there is none."""
    if name == "auto":
        in_slurm = SlurmLauncher.allocated(environ) is not None and shutil.which("srun")
        return SlurmLauncher.name if in_slurm else SshLauncher.name
    if name not in _LAUNCHERS:
        known = ", ".join(_LAUNCHERS)
        raise ConfigError(f"--launcher {name}: there is none of that name; choose one of {known}")
    return name


def read_hosts(text: Optional[str], path: Optional[str], launcher: str, environ: Dict[str, str]) -> Tuple[Host, ...]:
    """Return the hosts of -H, of a hostfile or of Slurm's allocation; none: this machine. ConfigError."""
    if text is not None and path is not None:
        raise ConfigError("-H and --hostfile say which hosts; give one of them")
    if path is not None:
        return parse_hostfile(_read(path, "--hostfile"), path)
    if text is not None:
        return parse_hosts(text)
    return REACHING[launcher].allocated(environ) or ()


def _layout(given: argparse.Namespace, launcher: str, environ: Dict[str, str]) -> Tuple[JobLayout, Tuple[Host, ...]]:
    """Return the layout of the job at its start, and all hosts with all their slots, those that it leaves free, too."""
    hosts: Tuple[Host, ...] = ()
    by_rankfile = None
    if given.rankfile is None:
        hosts = read_hosts(given.hosts, given.hostfile, launcher, environ)
    elif given.hosts is not None or given.hostfile is not None:
        raise ConfigError("--rankfile says which hosts, and so do -H and --hostfile; give one of them")
    else:
        by_rankfile = parse_rankfile(_read(given.rankfile, "--rankfile"), given.rankfile)
    numbers = {name: whole_number(_spelled(name), getattr(given, name)) for name in _NUMBERS}
    if numbers["num_proc"] is None and not any(host.slots for host in hosts):
        numbers["num_proc"] = whole_number("--min-np", smallest_size(vars(given)))
    layout = arrange(() if given.discovery_script else hosts, by_rankfile, mode=given.mode, **numbers)
    if any(host.slots is None for host in hosts):
        hosts = _filled(layout.placement)
    return layout, hosts


def _behind_program(given: argparse.Namespace, program: Sequence[str]) -> str:
    """Return what to say of options about ranks that stand behind the program, where none stands before it."""
    behind = [word for word in program[1:] if word in _ABOUT_RANKS]
    if not behind or any((given.num_proc, given.hosts, given.hostfile, given.rankfile)):
        return ""
    return (
        f"; {behind[0]} stands behind {program[0]}, which gets it: options of ddlrun come before the program, as in "
        f"'ddlrun {behind[0]} … {program[0]}'"
    )


def _filled(placement: Placement) -> Tuple[Host, ...]:
    """Return the hosts of a placement, each with as many slots as it has ranks."""
    return tuple(Host(name, len(ranks)) for name, ranks in zip(placement.hosts, placement.ranks))


def _spelled(name: str) -> str:
    return {"hosts": "-H", "num_proc": "-np"}.get(name, f"--{name}")


def _read(path: str, option: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {path}: it cannot be read: {error}") from error


def _environ(given: Sequence[str], environ: Dict[str, str]) -> Dict[str, str]:
    extra: Dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name:
            raise ConfigError(f"--env {text}: the name is missing; write NAME=VALUE or NAME")
        if not equals and name not in environ:
            raise ConfigError(f"--env {name}: it is not set here, so it cannot be passed on; write {name}=VALUE")
        extra[name] = value if equals else environ[name]
    return extra


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run ``ddlrun``; return its exit status: 2 for bad usage, else that of the job."""
    open_standard_streams()
    try:
        config = parse(sys.argv[1:] if argv is None else argv, dict(os.environ))
    except ConfigError as error:
        print(f"ddlrun: {error}\nusage: {USAGE}; ddlrun --help says more", file=sys.stderr)
        return 2
    return run(config)


def _starts(config: RunConfig) -> List[Start]:
    """Return what starts agents on the hosts that are known now."""
    return launcher_of(config).starts(config.placement, os.environ) if config.placement.hosts else []


def _job(config: RunConfig, starts: List[Start]) -> Union[LocalJob, ClusterJob]:
    if config.is_local:
        return LocalJob(config, FixedLocalCourse if config.elastic is None else ElasticLocalCourse)
    course = FixedClusterCourse if config.elastic is None else ElasticClusterCourse
    return ClusterJob(config, config.placement, starts, course=course)


def run(config: RunConfig) -> int:
    """Run the job that ``parse`` returned; return ddlrun's exit status."""
    for note in config.notes:
        print(f"ddlrun: {note}", file=sys.stderr)
    try:
        if config.pod_job is not None:
            print(k8s.manifest(config, secrets.token_bytes(32)), end="")
            return 0
        if config.head:
            return pods.run(config, os.environ)
        starts = _starts(config)
        if config.dry_run:
            print("\n".join(dry_run.describe(config, starts, os.environ)))
            return 0
        return _job(config, starts).run()
    except (Error, OSError) as error:
        print(f"ddlrun: {error}", file=sys.stderr)
        return 2
