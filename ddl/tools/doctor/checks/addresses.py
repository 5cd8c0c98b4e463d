"""Checks addresses: which interface is chosen, whether it can be reached, and where the hosts' names lead."""

from __future__ import annotations

from typing import Dict, Iterator, List, Tuple

from ddl.net.address import is_loopback
from ddl.tools.doctor.checks.verdict import ERROR, OK, WARNING, Verdict, each_host, present
from ddl.tools.doctor.facts import Facts, HostFacts, Local

__all__ = ["CHECKS"]

_Problems = Iterator[Tuple[str, str, str]]
_CHOOSE = "name the network that joins all hosts: --network-interface 10.1.0.0/16, or an interface's name"
_NAMES = "correct DNS or /etc/hosts"


def interface(facts: Facts) -> List[Verdict]:
    """The address for data: never loopback, up, and the one that packets to the other hosts leave by."""
    several = len(facts.hosts) > 1

    def problems(host: HostFacts, local: Local) -> _Problems:
        chosen = local.interface
        if is_loopback(local.chosen):
            if several:
                yield ERROR, f"data is awaited on loopback ({local.chosen}), where no other host comes", _CHOOSE
            return
        if chosen is None:
            yield ERROR, f"data is awaited on {local.chosen}, which no interface that is up has", _CHOOSE
            return
        if not chosen.carrier:
            yield ERROR, f"{chosen.name} ({chosen.address}) has no carrier", "plug its cable in, or choose another one"
        yield from _routes(facts, local)

    verdicts = []
    for verdict in each_host(facts, "interface", "", problems):
        if verdict.level == OK:  # it is worth a look, and the same on all hosts where names are
            name = verdict.hosts[0]
            local = next(local for host, local in present(facts) if host.name == name)
            entry = local.interface
            text = f"data goes by {entry.name}" if entry is not None else "loopback, as there is only this host"
            verdict = Verdict(OK, "interface", verdict.hosts, text)
        verdicts.append(verdict)
    return verdicts + _twins(facts)


def _routes(facts: Facts, local: Local) -> _Problems:
    others: Dict[str, List[str]] = {}
    for number, source in local.routes.items():
        if source != local.chosen:
            others.setdefault(source, []).append(facts.host(int(number)).name)
    for source, names in others.items():
        if not source:
            yield ERROR, f"there is no route to {', '.join(names)}", "set one ('ip route'), or choose another network"
        elif is_loopback(source) or source not in [entry.address for entry in local.interfaces]:
            yield ERROR, f"the way to {', '.join(names)} leads to this host itself ({source})", _CHOOSE
        else:
            by = next(entry.name for entry in local.interfaces if entry.address == source)
            text = f"packets to {', '.join(names)} leave by {by} ({source}), while data is awaited on {local.chosen}"
            yield WARNING, text, _CHOOSE


def _twins(facts: Facts) -> List[Verdict]:
    users: Dict[str, List[str]] = {}
    for host, local in present(facts):
        if not is_loopback(local.chosen):
            users.setdefault(local.chosen, []).append(host.name)
    remedy = "name every machine once; if they are different ones, give each its own address, or choose another network"
    return [
        Verdict(ERROR, "interface", tuple(names), f"they have the same address, {address}", remedy)
        for address, names in users.items()
        if len(names) > 1
    ]


def names(facts: Facts) -> List[Verdict]:
    """Names forth and back. DDL's ranks know addresses; other libraries and scripts (MASTER_ADDR) use names."""
    owners = {address: host.name for host, _ in present(facts) for address in host.addresses}

    def problems(host: HostFacts, local: Local) -> _Problems:
        if local.unanswered:
            text = f"no answer for {', '.join(local.unanswered)} within seconds: every start waits for that"
            yield WARNING, text, "see /etc/resolv.conf and the name servers in it, or put the hosts into /etc/hosts"
        for other, its in present(facts):
            yield from _forward(host, local, other, owners)
            back = local.reverse.get(its.chosen, "")
            leads = _known(facts, local, back)
            if leads and other.name not in leads:
                yield WARNING, f"{its.chosen} of {other.name} is called {back}, which is {' and '.join(leads)}", _NAMES
        own = local.names.get(local.name, ())
        if len(facts.hosts) > 1 and local.name not in local.unanswered and not set(own) & set(host.addresses):
            text = f"its own name, {local.name}, leads to {', '.join(own) or 'nothing'}"
            remedy = "give its name its address in /etc/hosts; gloo and MPI listen where the name leads"
            yield WARNING, text, remedy

    return each_host(facts, "names", "names lead to the hosts, and addresses to no wrong names", problems)


def _forward(host: HostFacts, local: Local, other: HostFacts, owners: Dict[str, str]) -> _Problems:
    resolved = local.names.get(other.name)
    if resolved is None or set(resolved) & set(other.addresses) or (host is other and all(map(is_loopback, resolved))):
        return  # a host's own name has a verdict of its own
    if not resolved:
        yield WARNING, f"the name {other.name} is not known", _NAMES + "; ddlrun needs it only where it is started"
        return
    strangers = sorted({owners[address] for address in resolved if address in owners})
    if strangers or all(map(is_loopback, resolved)):
        who = " and ".join(strangers) or "this host itself"
        yield ERROR, f"the name {other.name} leads to {', '.join(resolved)}, which is {who}", _NAMES
    else:
        text = f"the name {other.name} leads to {', '.join(resolved)}, which is no address of its interfaces"
        yield WARNING, text, _NAMES + ", unless addresses are translated on the way"


def _known(facts: Facts, local: Local, name: str) -> List[str]:
    """Return the hosts to which a name leads that came out of a reverse look-up."""
    short = name.partition(".")[0]
    return [host.name for host, its in present(facts) if short and short in (host.name, its.name)]


CHECKS = (interface, names)
