"""The command line of ``ddlrun``: arguments in, a checked ``RunConfig`` out; bad usage ends with status 2.

Options come before the program and belong to ddlrun; everything from the program's name on belongs to the program.
Long options may have one dash or two, as users of mpirun and of IBM's ddlrun expect.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shutil
import subprocess
import sys
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

from ddl._version import __version__
from ddl.bootstrap.environ import Settings, describe
from ddl.errors import ConfigError, Error
from ddl.run import horovod, pods
from ddl.run.cluster import ClusterJob
from ddl.run.config import RunConfig
from ddl.run.config_file import options_from
from ddl.run.hosts import Host, parse_hostfile, parse_hosts
from ddl.run.job import Job
from ddl.run.launchers import Start, k8s, mpi, slurm, ssh
from ddl.run.layout import Layout, arrange
from ddl.run.placement import Placement, parse_rankfile

__all__ = ["LAUNCHERS", "choose_launcher", "main", "parse", "read_hosts", "run"]

_USAGE = "ddlrun -np N [options] program [argument ...]"
_NUMBERS = ("num_proc", "accelerators", "nodes", "racks", "aisles")


class _CheckBuild(argparse.Action):
    """In a process of its own: ddlrun itself has neither numpy nor the core."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, *_: object) -> NoReturn:
        sys.exit(subprocess.run([sys.executable, "-m", "ddl.build_check"], check=False).returncode)


_NO_VALUE = ("store_true", "help", "version", _CheckBuild)


_OPTIONS: Tuple[Tuple[Tuple[str, ...], Dict[str, Any]], ...] = (
    (("-h", "--help"), {"action": "help", "help": "show this and exit"}),
    (("--version",), {"action": "version", "version": f"ddlrun {__version__}", "help": "show the version and exit"}),
    (("-np", "--num-proc"), {"metavar": "N", "help": "how many ranks to start; without: all slots"}),
    (
        ("-H", "--host", "--hosts"),
        {
            "metavar": "HOST[:SLOTS],...",
            "dest": "hosts",
            "help": "hosts to run on, and how many ranks each; without: this machine",
        },
    ),
    (
        ("--hostfile", "--machinefile"),
        {"metavar": "FILE", "dest": "hostfile", "help": "the same from a file, one 'host slots=N' per line"},
    ),
    (
        ("-rf", "--rankfile"),
        {"metavar": "FILE", "dest": "rankfile", "help": "which rank on which host: lines 'rank N=HOST slot=S'"},
    ),
    (
        ("-m", "--mode"),
        {
            "metavar": "[L:]SIZES",
            "dest": "mode",
            "default": "",
            "help": "dimensions, innermost first, as 4x8x2; L: p: measures algorithms at the start, r: forces rings",
        },
    ),
    (("--accelerators",), {"metavar": "N", "help": "ranks on each host, whatever slots it has"}),
    (("--nodes",), {"metavar": "N", "help": "hosts in each rack; nodes x racks x aisles are all hosts"}),
    (("--racks",), {"metavar": "N", "help": "racks in each aisle"}),
    (("--aisles",), {"metavar": "N", "help": "aisles"}),
    (("--tcp",), {"action": "store_true", "help": "use TCP between hosts, as DDL always does"}),
    (
        ("--launcher",),
        {
            "metavar": "NAME",
            "default": "auto",
            "help": "how to reach other hosts: ssh, mpi or slurm; without: slurm in an allocation, else ssh; "
            "k8s prints a manifest for Kubernetes, and its pods run with pods",
        },
    ),
    (
        ("--network-interface", "--network-interfaces"),
        {
            "metavar": "NAME|CIDR,...",
            "dest": "interface",
            "action": "append",
            "default": [],
            "help": "interfaces for data on every host, as eth1 or 10.1.0.0/16; without: all networks that join hosts",
        },
    ),
    (
        ("--config-file",),
        {"metavar": "FILE", "help": "take options from a TOML file, as np = 8; these here beat it"},
    ),
    (("-v", "--verbose"), {"action": "store_true", "help": "say on stderr what ddlrun does"}),
    (
        ("--timeout",),
        {"metavar": "SECONDS", "help": "let an operation take so long before it fails (sets DDL_TIMEOUT)"},
    ),
    (
        ("--start-timeout",),
        {"metavar": "SECONDS", "help": "let ranks wait so long for the others at start (sets DDL_START_TIMEOUT)"},
    ),
    (
        ("--env",),
        {
            "metavar": "NAME[=VALUE]",
            "action": "append",
            "default": [],
            "help": "set a variable in every rank; without =VALUE, pass on ddlrun's own; repeatable",
        },
    ),
    (("--output-dir",), {"metavar": "DIR", "help": "write DIR/rank.N.out and DIR/rank.N.err instead of printing"}),
    (("--no-prefix",), {"action": "store_true", "help": 'do not put "[rank] " before each line'}),
    (("--prefix-timestamp",), {"action": "store_true", "help": "put the time before each line"}),
    (("-p", "--ssh-port"), {"metavar": "PORT", "help": "ssh: the port of the other hosts"}),
    (("-i", "--ssh-identity-file"), {"metavar": "FILE", "help": "ssh: the key to use"}),
    (("-cb", "--check-build"), {"action": _CheckBuild, "help": "try whether this installation works and exit"}),
    (("--pods",), {"metavar": "N", "help": "k8s, pods: how many pods share the ranks; without: one"}),
    (("--head",), {"metavar": "NAME:PORT", "help": "pods: where pod 0 is found; the manifest says it"}),
    *k8s.OPTIONS,
)

#: Launchers that reach hosts by starting processes here; k8s and pods go ways of their own.
LAUNCHERS: Dict[str, Callable[[Placement, Mapping[str, str]], List[Start]]] = {
    "ssh": ssh.starts,
    "mpi": mpi.starts,
    "slurm": slurm.starts,
}
_LAUNCHER_NAMES = (*LAUNCHERS, "k8s", "pods")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ddlrun",
        usage=_USAGE,
        description="Start a program as N ranks of one job, on this machine or over ssh on the hosts of -H. A program "
        "that ends in .py runs with this Python. The first rank that fails ends the job; ddlrun exits with its status.",
        epilog="options of horovodrun are understood as well: docs/from_horovod.md\n\n"
        "variables that DDL reads in every rank, with their defaults:\n\n" + describe(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    for names, keywords in _OPTIONS:
        parser.add_argument(*names, **keywords)
    return parser


def _split(argv: Sequence[str]) -> Tuple[List[str], List[str], List[str]]:
    """Part ddlrun's options, in the spelling that the parser knows, from the program and its arguments.

    Last come the options of horovodrun's that have no effect.
    """
    count = {name: int(keywords.get("action") not in _NO_VALUE) for names, keywords in _OPTIONS for name in names}
    count.update(horovod.OPTIONS)
    spelling = {name: name for name in count}
    spelling.update({name[1:]: name for name in count if name.startswith("--")})
    spelling["--np"] = "-np"
    options: List[str] = []
    idle: List[str] = []
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        name, equals, value = rest.pop(0).partition("=")
        if name not in spelling:
            raise ConfigError(f"unknown option {name}")
        name = spelling[name]
        if equals and not count[name]:
            raise ConfigError(f"option {name} takes no value, but {value!r} was given")
        values = [value] if equals else []
        while len(values) < count[name]:
            if not rest:
                raise ConfigError(f"option {name} needs a value")
            values.append(rest.pop(0))
        if name not in horovod.OPTIONS:
            options.append("=".join(["--num-proc" if name == "-np" else name, *values]))
        elif horovod.word(name, values):
            options.append(horovod.word(name, values))
        else:
            idle.append(name)
    return options, rest[1:] if rest[:1] == ["--"] else rest, idle


def parse(argv: Sequence[str], environ: Dict[str, str]) -> RunConfig:
    """Return what ``argv`` asks for; ConfigError says what is wrong with it."""
    options, program, idle = _split(argv)
    given = _parser().parse_args(options)
    if given.config_file is not None:
        here = given
        try:
            from_file, _, more_idle = _split(options_from(given.config_file))
        except ConfigError as error:
            raise ConfigError(f"--config-file {given.config_file}: {error}") from error
        given = _parser().parse_args([*from_file, *options])
        given.interface = here.interface or given.interface
        idle += more_idle
    launcher = choose_launcher(given.launcher, environ)
    _check_pod_options(given, launcher)
    head, pod_job = "", None
    if launcher in ("k8s", "pods"):
        count = _number("--pods", given.pods) or 1
        pod_job = k8s.pod_job(vars(given), count) if launcher == "k8s" else None
        head = given.head if pod_job is None else k8s.head(pod_job)
        size = _number("-np", given.num_proc) or count
        if size < count:
            raise ConfigError(f"-np {size} is less than --pods {count}: every pod needs a rank; take fewer pods")
        layout = arrange(pods.hosts(head, count), None, num_proc=size, mode=given.mode)
    else:
        layout = _layout(given, launcher, environ)
    extra = {**layout.environ, **_environ(given.env, environ)}
    for value, name in ((given.timeout, "DDL_TIMEOUT"), (given.start_timeout, "DDL_START_TIMEOUT")):
        if value is not None:
            extra[name] = value
    Settings.from_environ({**environ, **extra})  # every rank would find the same mistake: find it once, before
    return RunConfig(
        num_proc=layout.size,
        command=_command(program, {**environ, **extra}) if pod_job is None else _in_image(program),
        environ=tuple(extra.items()),
        output_dir=given.output_dir,
        prefix=not given.no_prefix,
        verbose=given.verbose,
        placement=layout.placement,
        launcher=launcher,
        interface=",".join(given.interface),
        timestamps=given.prefix_timestamp,
        ssh_options=_ssh_options(given, launcher),
        notes=tuple(horovod.no_effect(idle)),
        head=head,
        pod_job=pod_job,
    )


def _ssh_options(given: argparse.Namespace, launcher: str) -> Tuple[str, ...]:
    port, key = _number("--ssh-port", given.ssh_port), given.ssh_identity_file
    if launcher != "ssh" and (port or key):
        raise ConfigError(f"--ssh-port and --ssh-identity-file are for --launcher ssh, and this is {launcher}")
    return (*(("-p", str(port)) if port else ()), *(("-i", key) if key else ()))


def _check_pod_options(given: argparse.Namespace, launcher: str) -> None:
    """Refuse options that the launcher would ignore, and a manifest's launcher without what it needs."""
    allowed = {"k8s": [*(names[0] for names, _ in k8s.OPTIONS), "--pods"], "pods": ["--pods", "--head"]}
    for name in ("--pods", "--head", *(names[0] for names, _ in k8s.OPTIONS)):
        if getattr(given, name[2:].replace("-", "_")) and name not in allowed.get(launcher, ()):
            meant = " or ".join(other for other, names in allowed.items() if name in names)
            raise ConfigError(f"{name} is for --launcher {meant}, and this is --launcher {launcher}; leave it out")
    if launcher not in allowed:
        return
    if given.hosts is not None or given.hostfile is not None:
        raise ConfigError(f"--launcher {launcher}: Kubernetes chooses the hosts; say --pods N, not -H or --hostfile")
    if launcher == "k8s" and not given.dry_run:
        raise ConfigError(
            "--launcher k8s only prints a manifest: add --dry-run, and pass what it prints to kubectl apply -f -"
        )
    if launcher == "pods" and not given.head:
        raise ConfigError("--launcher pods needs --head NAME:PORT, where pod 0 is found; --launcher k8s writes it")


def choose_launcher(name: str, environ: Dict[str, str]) -> str:
    """Return the launcher that ``name``, perhaps "auto", means here; ConfigError if there is none."""
    if name == "auto":
        return "slurm" if slurm.allocation(environ) is not None and shutil.which("srun") else "ssh"
    if name not in _LAUNCHER_NAMES:
        raise ConfigError(f"--launcher {name}: there is none of that name; choose one of {', '.join(_LAUNCHER_NAMES)}")
    return name


def read_hosts(text: Optional[str], path: Optional[str], launcher: str, environ: Dict[str, str]) -> Tuple[Host, ...]:
    """Return the hosts of -H, of a hostfile or of Slurm's allocation; none: this machine. ConfigError."""
    if text is not None and path is not None:
        raise ConfigError("-H and --hostfile say which hosts; give one of them")
    if path is not None:
        return parse_hostfile(_read(path, "--hostfile"), path)
    if text is not None:
        return parse_hosts(text)
    return slurm.allocation(environ) or () if launcher == "slurm" else ()


def _layout(given: argparse.Namespace, launcher: str, environ: Dict[str, str]) -> Layout:
    hosts: Tuple[Host, ...] = ()
    placement = None
    if given.rankfile is None:
        hosts = read_hosts(given.hosts, given.hostfile, launcher, environ)
    elif given.hosts is not None or given.hostfile is not None:
        raise ConfigError("--rankfile says which hosts, and so do -H and --hostfile; give one of them")
    else:
        placement = parse_rankfile(_read(given.rankfile, "--rankfile"), given.rankfile)
    numbers = {name: _number(_spelled(name), getattr(given, name)) for name in _NUMBERS}
    return arrange(hosts, placement, mode=given.mode, **numbers)


def _spelled(name: str) -> str:
    return {"hosts": "-H", "num_proc": "-np"}.get(name, f"--{name}")


def _read(path: str, option: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {path}: it cannot be read: {error}") from error


def _number(option: str, text: Optional[str]) -> Optional[int]:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or int(text) < 1:
        raise ConfigError(f"{option} {text}: it must be a whole number from 1 up")
    return int(text)


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


def _command(program: Sequence[str], environ: Dict[str, str]) -> Tuple[str, ...]:
    if not program:
        raise ConfigError("the program is missing")
    name, arguments = program[0], program[1:]
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise ConfigError(f"there is no program {name!r} in {os.getcwd()!r}")
        # -u: output shows when it is written, not when a block is full.
        return (sys.executable, "-u", name, *arguments)
    path = shutil.which(name, path=environ.get("PATH", os.defpath))
    if path is None:
        where = "is not an executable file" if os.path.exists(name) else "was not found"
        hint = "" if os.sep in name else f" on the PATH; is it ./{name}?"
        raise ConfigError(f"the program {name!r} {where}{hint}")
    return (path, *arguments)


def _in_image(program: Sequence[str]) -> Tuple[str, ...]:
    """What is here says nothing about what is in the image: ddlrun looks there."""
    if not program:
        raise ConfigError("the program is missing")
    return tuple(program)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run ``ddlrun``; return its exit status: 2 for bad usage, else that of the job."""
    try:
        config = parse(sys.argv[1:] if argv is None else argv, dict(os.environ))
    except ConfigError as error:
        print(f"ddlrun: {error}\nusage: {_USAGE}; ddlrun --help says more", file=sys.stderr)
        return 2
    return run(config)


def run(config: RunConfig) -> int:
    """Run the job that ``parse`` returned; return ddlrun's exit status."""
    for note in config.notes:
        print(f"ddlrun: {note}", file=sys.stderr)
    try:
        if config.placement is None:
            return Job(config).run()
        if config.pod_job is not None:
            print(k8s.manifest(config, secrets.token_bytes(32)), end="")
            return 0
        if config.launcher == "pods":
            return pods.run(config, config.placement, os.environ)
        if config.launcher == "ssh":
            starts = ssh.starts(config.placement, os.environ, config.ssh_options)
        else:
            starts = LAUNCHERS[config.launcher](config.placement, os.environ)
        return ClusterJob(config, config.placement, starts).run()
    except (Error, OSError) as error:
        print(f"ddlrun: {error}", file=sys.stderr)
        return 2
