"""A verdict: one line of ``ddl doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Tuple

from ddl.tools.doctor.facts import Facts, HostFacts, Local

__all__ = ["ERROR", "OK", "WARNING", "Verdict", "each_host", "merged", "present"]

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True)
class Verdict:
    """How bad, which check, whom it concerns, what is the matter and, unless all is well, what to do."""

    level: str
    check: str
    hosts: Tuple[str, ...]
    text: str
    remedy: str = ""


def present(facts: Facts) -> List[Tuple[HostFacts, Local]]:
    """Return the hosts that could be asked."""
    return [(host, host.local) for host in facts.hosts if host.local is not None]


def each_host(
    facts: Facts, check: str, well: str, problems: Callable[[HostFacts, Local], Iterable[Tuple[str, str, str]]]
) -> List[Verdict]:
    """Ask ``problems`` (level, text, remedy) of every host; where there are none, all is ``well``."""
    verdicts = []
    for host, local in present(facts):
        said = list(problems(host, local)) or [(OK, well, "")]
        verdicts += [Verdict(level, check, (host.name,), text, remedy) for level, text, remedy in said]
    return verdicts


def merged(verdicts: Iterable[Verdict]) -> List[Verdict]:
    """Return the same with one verdict for all hosts about which the same is said."""
    hosts: Dict[Verdict, List[str]] = {}
    for verdict in verdicts:
        key = Verdict(verdict.level, verdict.check, (), verdict.text, verdict.remedy)
        hosts.setdefault(key, []).extend(verdict.hosts)
    return [
        Verdict(key.level, key.check, tuple(dict.fromkeys(names)), key.text, key.remedy) for key, names in hosts.items()
    ]
