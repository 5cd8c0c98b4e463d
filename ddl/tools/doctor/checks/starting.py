"""Checks whether ranks can be started on a host: reaching it, versions, the native core, directory and script."""

from __future__ import annotations

import re
from typing import Iterator, List, Tuple

from ddl.tools.doctor.checks.verdict import ERROR, OK, Verdict, each_host
from ddl.tools.doctor.facts import Facts, HostFacts, Local

__all__ = ["CHECKS", "diagnose"]

#: What a launcher or agent says when it fails, which check that belongs to, and what to do. The first that fits counts.
_SAYINGS: Tuple[Tuple[str, str, str], ...] = (
    (r"has DDL .*, this one", "version", "install the same version of DDL on every host"),
    (r"has Python .*, this one", "python", "use the same Python, at the same path, on every host"),
    (
        r"Could not resolve hostname|Name or service not known|name resolution",
        "start",
        "correct the name, or make it known: DNS, /etc/hosts, ~/.ssh/config",
    ),
    (
        r"Permission denied",
        "start",
        "let ssh log in without a password: ssh-copy-id HOST, and try 'ssh -o BatchMode=yes HOST true'",
    ),
    (
        r"[Hh]ost key verification failed|HOST IDENTIFICATION HAS CHANGED",
        "start",
        "log in by hand once and accept its key, or put it into ~/.ssh/known_hosts (ssh-keyscan HOST)",
    ),
    (
        r"Connection refused|Connection timed out|No route to host|Network is unreachable|timed out",
        "start",
        "is the host on, is sshd running there, does a firewall let port 22 through? Try 'ssh HOST true'",
    ),
    (
        r"No module named '?(ddl|numpy|msgpack)",
        "start",
        "install DDL for that Python on the host, or set PYTHONPATH, which is passed on, to a place that it has, too",
    ),
    (
        r"encryption needs OpenSSL|DDL_OPENSSL=",
        "encryption",
        "install OpenSSL 1.1.1 or later on the host (Debian: libssl3; conda: openssl), or do without --encrypt",
    ),
    (
        r"status 12[67]\b|[Nn]o such file or directory|not found",
        "python",
        "install the same Python, or virtual environment, at the same path on every host",
    ),
    (
        r"no agent has called|cannot be reached from this host",
        "start",
        "let that host connect to this one on any port from 32768 up: it reached nobody on this one's addresses",
    ),
    (
        r"there is no network interface|data cannot be awaited on",
        "interface",
        "name one that every host has: --network-interface NAME, or the network as 10.1.0.0/16 if names differ",
    ),
)
_ELSE = ("start", "try what ddlrun does there: ssh HOST, then 'python -m ddl.launch.agent.remote </dev/null'")


def diagnose(problem: str) -> Tuple[str, str]:
    """Return the check that a launcher's or agent's words belong to, and the remedy."""
    return next(((check, remedy) for pattern, check, remedy in _SAYINGS if re.search(pattern, problem)), _ELSE)


def starting(facts: Facts) -> List[Verdict]:
    verdicts = []
    for host in facts.hosts:
        if host.problem:
            check, remedy = diagnose(host.problem)
            text = " ".join(host.problem.split())
            verdicts.append(Verdict(ERROR, check, (host.name,), text, remedy.replace("HOST", host.name)))
        elif host.local is not None:
            said = f"ranks start; DDL {host.local.version}, Python {host.local.python}"
            verdicts.append(Verdict(OK, "start", (host.name,), said))
        else:
            remedy = "see what the check 'probe' says, and try again"
            verdicts.append(Verdict(ERROR, "start", (host.name,), "it was reached, but said nothing of itself", remedy))
    return verdicts


def core(facts: Facts) -> List[Verdict]:
    def problems(host: HostFacts, local: Local) -> Iterator[Tuple[str, str, str]]:
        if local.core_problem:
            remedy = "install DDL there by that machine's own compiler and Python ('pip install .'), with numpy"
            yield ERROR, f"the native core cannot be used: {local.core_problem}", remedy

    return each_host(facts, "core", "the native core loads and has its memory", problems)


def directory(facts: Facts) -> List[Verdict]:
    def problems(host: HostFacts, local: Local) -> Iterator[Tuple[str, str, str]]:
        if local.directory_problem:
            remedy = (
                "ranks run where ddlrun is started: make that directory available on every host, or start elsewhere"
            )
            yield ERROR, local.directory_problem, remedy

    return each_host(facts, "directory", "the working directory is there", problems)


def script(facts: Facts) -> List[Verdict]:
    def problems(host: HostFacts, local: Local) -> Iterator[Tuple[str, str, str]]:
        if local.script_problem:
            yield ERROR, local.script_problem, "copy it to every host, or keep it on a file system that all share"

    if not facts.script:
        return []
    return each_host(facts, "script", f"{facts.script} is there", problems)


def probe(facts: Facts) -> List[Verdict]:
    """Whether the measurement itself came to its end."""
    verdicts = []
    again = "try again; 'ddlrun -v' on the same hosts shows more, and if that works, too, please report this"
    late = [host.name for host in facts.hosts if host.local is not None and not host.finished]
    if facts.failure:
        verdicts.append(Verdict(ERROR, "probe", tuple(late), f"measuring did not end well: {facts.failure}", again))
    elif late:
        verdicts.append(Verdict(ERROR, "probe", tuple(late), "measuring was not finished", again))
    return verdicts


CHECKS = (starting, core, directory, script, probe)
