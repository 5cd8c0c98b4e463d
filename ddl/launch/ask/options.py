"""ddlrun's options, in the groups in which ``ddlrun --help`` shows them: the ten that most jobs need come first."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any, Dict, NoReturn, Sequence, Tuple

from ddl._version import __version__
from ddl.bootstrap.environ import describe
from ddl.errors import ConfigError

__all__ = ["FOR_MANIFEST", "OPTIONS", "USAGE", "parser", "values_of"]

USAGE = "ddlrun -np N [options] program [argument ...]"
_WIDTH = 100  # columns of the help

_Option = Tuple[Tuple[str, ...], Dict[str, Any]]


class _CheckBuild(argparse.Action):
    """In a process of its own: ddlrun itself has neither numpy nor the core."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, *_: object) -> NoReturn:
        sys.exit(subprocess.run([sys.executable, "-m", "ddl.tools.build_check"], check=False).returncode)


_NO_VALUE = ("store_true", "help", "version", _CheckBuild)

_USUAL: Tuple[_Option, ...] = (
    (("-np", "-n", "--num-proc"), {"metavar": "N", "help": "how many ranks to start; without: all slots of -H"}),
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
        ("--env",),
        {
            "metavar": "NAME[=VALUE]",
            "action": "append",
            "default": [],
            "help": "set a variable in every rank; without =VALUE, pass on ddlrun's own; repeatable",
        },
    ),
    (
        ("--timeout",),
        {"metavar": "SECONDS", "help": "let an operation take so long before it fails (sets DDL_TIMEOUT)"},
    ),
    (
        ("--start-timeout",),
        {"metavar": "SECONDS", "help": "let ranks wait so long for the others at start (sets DDL_START_TIMEOUT)"},
    ),
    (
        ("--output-dir",),
        {"metavar": "DIR", "help": "write DIR/rank.N.out and DIR/rank.N.err; only rank 0 is shown, too"},
    ),
    (
        ("--dry-run",),
        {
            "action": "store_true",
            "help": "print what would be started, where and with which environment, and start nothing; "
            "with --launcher k8s: print the manifest",
        },
    ),
    (("-v", "--verbose"), {"action": "store_true", "help": "say on stderr what ddlrun does"}),
    (("-h", "--help"), {"action": "help", "help": "show this and exit"}),
)

_HOSTS: Tuple[_Option, ...] = (
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
        ("--host-timeout",),
        {
            "metavar": "SECONDS",
            "help": "give up a host, or the network to it, after so long a silence; without: 7 (sets DDL_HOST_TIMEOUT)",
        },
    ),
    (("-p", "--ssh-port"), {"metavar": "PORT", "help": "ssh: the port of the other hosts"}),
    (("-i", "--ssh-identity-file"), {"metavar": "FILE", "help": "ssh: the key to use"}),
    (
        ("--encrypt",),
        {"action": "store_true", "help": "encrypt all TCP connections of the job (sets DDL_ENCRYPT)"},
    ),
    (
        ("--checksum",),
        {"action": "store_true", "help": "find what a broken network changes on its way (sets DDL_CHECKSUM)"},
    ),
    (("--tcp",), {"action": "store_true", "help": "use TCP between hosts, as DDL always does"}),
)

_LAYOUT: Tuple[_Option, ...] = (
    (
        ("-m", "--mode"),
        {
            "metavar": "[L:]SIZES",
            "dest": "mode",
            "default": "",
            "help": "dimensions, innermost first, as 4x8x2; L: p: measures algorithms at the start, r: forces rings",
        },
    ),
    (
        ("-rf", "--rankfile"),
        {"metavar": "FILE", "dest": "rankfile", "help": "which rank on which host: lines 'rank N=HOST slot=S'"},
    ),
    (("--accelerators",), {"metavar": "N", "help": "ranks on each host, whatever slots it has"}),
    (("--nodes",), {"metavar": "N", "help": "hosts in each rack; nodes x racks x aisles are all hosts"}),
    (("--racks",), {"metavar": "N", "help": "racks in each aisle"}),
    (("--aisles",), {"metavar": "N", "help": "aisles"}),
)

_OUTPUT: Tuple[_Option, ...] = (
    (("--no-prefix",), {"action": "store_true", "help": 'do not put "[rank] " before each line'}),
    (("--prefix-timestamp",), {"action": "store_true", "help": "put the time before each line"}),
    (
        ("--dashboard",),
        {
            "metavar": "ADDR[:PORT]",
            "nargs": "?",
            "const": "127.0.0.1",
            "help": "serve a page about the job for a browser, and print its address; without =ADDR: on 127.0.0.1",
        },
    ),
    (
        ("--history",),
        {"metavar": "FILE", "help": "write what the page shows to FILE; ddl page FILE shows it, also after the end"},
    ),
    (("-q", "--quiet"), {"action": "store_true", "help": "show no line about the job at the bottom of a terminal"}),
    (
        ("--grace",),
        {
            "metavar": "SECONDS",
            "help": "how long ranks have to end by themselves, and to save what they have, before they are killed; "
            "without: 30 when ddlrun is told to stop, 10 when another rank has failed",
        },
    ),
    (
        ("--dump-dir",),
        {
            "metavar": "DIR",
            "help": "keep what the ranks of a failed job did last there, for ddl blame; "
            "without: ~/.local/state/ddl/dumps",
        },
    ),
    (
        ("--metrics",),
        {
            "metavar": "[ADDR:]PORT",
            "help": "serve what the job does at /metrics, for Prometheus; without ADDR: to this host only; "
            "port 0: any free one",
        },
    ),
    (
        ("--timeline",),
        {"metavar": "FILE", "help": "write when each rank did what, for ui.perfetto.dev and ddl timeline"},
    ),
    (("--timeline-mb",), {"metavar": "N", "help": "end that file after N megabytes (200)"}),
)

_ELASTIC: Tuple[_Option, ...] = (
    (
        ("--min-np", "--min-num-proc"),
        {"metavar": "N", "dest": "min_np", "help": "elastic: go on while there are so many ranks; without: -np"},
    ),
    (
        ("--max-np", "--max-num-proc"),
        {"metavar": "N", "dest": "max_np", "help": "never more ranks; without: -np, or with a script all slots"},
    ),
    (
        ("--host-discovery-script",),
        {
            "metavar": "FILE",
            "dest": "discovery_script",
            "help": "elastic: a program that prints the hosts of now, 'host:slots' a line; run each second",
        },
    ),
    (("--slots-per-host",), {"metavar": "N", "help": "slots of hosts that the script names without slots"}),
    (("--elastic",), {"action": "store_true", "help": "elastic: as --min-np 1"}),
    (
        ("--elastic-timeout",),
        {"metavar": "SECONDS", "help": "wait so long for missing slots (600; or HOROVOD_ELASTIC_TIMEOUT)"},
    ),
    (("--reset-limit",), {"metavar": "N", "help": "end the job when its ranks form anew more than N times"}),
    (
        ("--blacklist-cooldown-range",),
        {
            "metavar": ("LO", "HI"),
            "dest": "cooldown_range",
            "nargs": 2,
            "help": "start nothing on a host that failed for LO to HI seconds, longer each time",
        },
    ),
    (
        ("--max-restarts",),
        {
            "metavar": "N",
            "help": "start at most N processes in place of lost ones; 0 without a free slot, unless pods may return",
        },
    ),
    (
        ("--leave-failed-hosts",),
        {"action": "store_true", "help": "leave the whole host on which a rank fails, as Horovod does"},
    ),
)

_OTHER: Tuple[_Option, ...] = (
    (
        ("--rebalance",),
        {
            "action": "store_true",
            "help": "let the others do the work of late ranks in large all-reduces (sets DDL_REBALANCE)",
        },
    ),
    (
        ("--jax",),
        {"action": "store_true", "help": "let JAX find the ranks, and use DDL's collectives on CPUs (docs/jax.md)"},
    ),
    (
        ("--config-file",),
        {"metavar": "FILE", "help": "take options from a TOML file, as np = 8; these here beat it"},
    ),
    (("-cb", "--check-build"), {"action": _CheckBuild, "help": "try whether this installation works and exit"}),
    (("--version",), {"action": "version", "version": f"ddlrun {__version__}", "help": "show the version and exit"}),
)

#: For ``--launcher k8s`` alone.
FOR_MANIFEST: Tuple[_Option, ...] = (
    (("--image",), {"metavar": "IMAGE", "help": "k8s: the container image, with Python, DDL and the program in it"}),
    (("--kind",), {"metavar": "KIND", "help": "k8s: job (an Indexed Job; the default) or jobset"}),
    (("--job-name",), {"metavar": "NAME", "help": "k8s: the name of all that is made; without: ddl"}),
    (("--namespace",), {"metavar": "NAME", "help": "k8s: default: the namespace of the user who applies the manifest"}),
    (
        ("--limits",),
        {"metavar": "NAME=QUANTITY,...", "help": "k8s: requests and limits of each pod, as cpu=4,memory=8Gi"},
    ),
    (("--queue",), {"metavar": "NAME", "help": "k8s: the queue that admits the job: Kueue's, or the --scheduler's"}),
    (
        ("--scheduler",),
        {"metavar": "NAME", "help": "k8s: volcano starts all pods at once, or none; without: the usual"},
    ),
)
_KUBERNETES: Tuple[_Option, ...] = (
    (("--pods",), {"metavar": "N", "help": "k8s, pods: how many pods share the ranks; without: one"}),
    (("--head",), {"metavar": "NAME:PORT", "help": "pods: where pod 0 is found; the manifest says it"}),
    *FOR_MANIFEST,
)

_GROUPS: Tuple[Tuple[str, Tuple[_Option, ...]], ...] = (
    ("usual options", _USUAL),
    ("other hosts", _HOSTS),
    ("layout of the ranks", _LAYOUT),
    ("ranks that come and go", _ELASTIC),
    ("output", _OUTPUT),
    ("more", _OTHER),
    ("Kubernetes", _KUBERNETES),
)

OPTIONS: Tuple[_Option, ...] = tuple(option for _, options in _GROUPS for option in options)


def values_of(keywords: Dict[str, Any]) -> int:
    """Return how many values an option of ``OPTIONS`` with these keywords has, if they stand behind it.

    One that may have a value has it behind "=": else a program's name could be taken for it.
    """
    nargs = keywords.get("nargs", 1)
    return 0 if keywords.get("action") in _NO_VALUE or nargs == "?" else int(nargs)


class _RaisingParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


class _Help(argparse.RawDescriptionHelpFormatter):
    """As wide as it needs to be, and no wider than any terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=_WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """``-np, -n, --num-proc N``: the value once, not behind every spelling."""
        default = action.dest.upper()
        value = "" if action.nargs == 0 else f" {self._format_args(action, default)}"
        return ", ".join(action.option_strings) + value


def parser() -> argparse.ArgumentParser:
    """Return the parser of ddlrun's own options, of which ``error`` raises ConfigError."""
    own_options = _RaisingParser(
        prog="ddlrun",
        usage=USAGE,
        description="Start a program as N ranks of one job, on this machine or over ssh on the hosts of -H. A program\n"
        "that ends in .py runs with this Python. The first rank that fails ends the job, unless it is\n"
        "elastic; ddlrun exits with the status of the rank that failed.",
        epilog="The options of horovodrun are understood as well: docs/from_horovod.md\n\n"
        "variables that DDL reads in every rank, with their defaults:\n\n" + describe(_WIDTH),
        formatter_class=_Help,
        add_help=False,
        allow_abbrev=False,
    )
    for title, options in _GROUPS:
        group = own_options.add_argument_group(title)
        for names, keywords in options:
            group.add_argument(*names, **keywords)
    return own_options
