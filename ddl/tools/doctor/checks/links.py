"""Checks the links between hosts: ports, sizes of packets, latency, bandwidth, and differences of clocks.

The rail that a job's data takes must work. If another rail between the same hosts does not, that is a warning. A rail
is named by the interface at the source. One verdict is about all pairs with the same trouble on a rail. If one host is
in all of these pairs, the verdict names that host.
"""

from __future__ import annotations

import ipaddress
import statistics
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from ddl.net.interfaces import Interface
from ddl.tools.doctor.checks.verdict import ERROR, OK, WARNING, Verdict, present
from ddl.tools.doctor.facts import Facts, HostLink
from ddl.tools.doctor.phrases import duration, pairs_text, rate

__all__ = ["CHECKS", "on_rails"]

_SLOW_TRIP = 1e-3  # seconds, one way: no data centre's network takes so long
_SLOW = 0.5e9  # bits per second
_ONE_CORE = 10e9  # bits per second that one connection of a Python program reaches on most processors
_CLOCK = 0.5  # seconds
_FIREWALL = "let the hosts of a job connect to one another on all ports from 32768 up (TCP), as data has no fixed port"


def on_rails(facts: Facts) -> List[Tuple[HostLink, bool]]:
    """Return the links that a job could use, and whether it would: the others only happen to have addresses."""
    chosen = {host.number: local.chosen for host, local in present(facts)}
    marked = []
    for link in facts.links:
        local = facts.host(link.source).local
        if chosen.get(link.target) == link.address:
            marked.append((link, True))
        elif local is not None and (not link.problem or _network(link.address, local.interfaces)) and not link.stranger:
            marked.append((link, False))
    return marked


def _network(address: str, interfaces: Iterable[Interface]) -> str:
    """Return the interface whose network the address is in."""
    for entry in interfaces:
        if ipaddress.ip_address(address) in ipaddress.ip_network(f"{entry.address}/{entry.prefix}", strict=False):
            return entry.name
    return ""


def _rail(facts: Facts, link: HostLink) -> str:
    local = facts.host(link.source).local
    return link.interface or (_network(link.address, local.interfaces) if local is not None else "") or link.address


def _together(facts: Facts, check: str, links: Iterable[Tuple[str, str, str, HostLink]]) -> List[Verdict]:
    """Make one verdict of all links (level, text, remedy, link) of which the same is said."""
    groups: Dict[Tuple[str, str, str], List[HostLink]] = {}
    for level, text, remedy, link in links:
        groups.setdefault((level, text, remedy), []).append(link)
    verdicts = []
    for (level, text, remedy), concerned in groups.items():
        name = {link.source: facts.host(link.source).name for link in concerned}
        name.update({link.target: facts.host(link.target).name for link in concerned})
        common = set.intersection(*({link.source, link.target} for link in concerned))
        blamed = [number for number in name if len(common) != 1 or number in common]
        ordered = sorted(concerned, key=lambda link: (link.source, link.target))
        pairs = pairs_text((name[link.source], name[link.target]) for link in ordered)
        verdicts.append(
            Verdict(level, check, tuple(name[number] for number in sorted(blamed)), f"{pairs}: {text}", remedy)
        )
    return verdicts


def _well(facts: Facts, check: str, verdicts: List[Verdict], text: Callable[[], str]) -> List[Verdict]:
    """Say that all is well, if there is something to say it of."""
    hosts = tuple(host.name for host, _ in present(facts))
    return verdicts or ([Verdict(OK, check, hosts, text())] if facts.links else [])


def ports(facts: Facts) -> List[Verdict]:
    troubled = []
    for link, used in on_rails(facts):
        level, rail = (ERROR if used else WARNING), _rail(facts, link)
        failed = sorted({problem for problem in link.ports if problem})
        if link.stranger:
            text = f"{link.address} is answered by somebody else"
            remedy = "free that address of its second user, or choose another network: --network-interface"
            troubled.append((level, text, remedy, link))
        elif failed:
            which = "" if all(link.ports) else "some ports only: "
            said, remedy = _SAID.get(failed[0], (f"connecting ends with '{failed[0]}'", _FIREWALL))
            troubled.append((level, f"{which}{said} on {rail}", remedy, link))
    return _well(facts, "ports", _together(facts, "ports", troubled), lambda: "every host reaches every other one")


#: By a link's problem: what it looks like, and the remedy.
_SAID = {
    "timeout": ("no answer to connections", _FIREWALL + "; if 'ping' is silent, too, see to cable and switch"),
    "refused": ("connections are refused", _FIREWALL),
    "forbidden": ("this host's own firewall forbids connections", _FIREWALL),
    "unreachable": ("the host cannot be reached", "see to its cable and switch port, and to routes ('ip route get')"),
    "no route": ("there is no route", "set one ('ip route'), or choose a network that all hosts have"),
}


def mtu(facts: Facts) -> List[Verdict]:
    troubled = []
    remedy = "give all interfaces and switch ports of a network the same MTU ('ip link set dev NAME mtu N')"
    for link, used in on_rails(facts):
        here, there = _ends(facts, link)
        if here is None or there is None or link.problem:
            continue
        size = min(here.mtu, there.mtu)
        if link.large is False:
            text = f"packets of {size} bytes vanish on {here.name}, small ones do not: connections will stall"
            troubled.append((ERROR if used else WARNING, text, remedy, link))
        elif here.mtu != there.mtu:
            small, big = sorted((here.mtu, there.mtu))
            troubled.append((WARNING, f"MTU {small} on one side of {here.name} and {big} on the other", remedy, link))
        elif 0 < link.mtu < size:
            narrow = "nothing, if there is a tunnel on the way; else look for a switch or route with a smaller MTU"
            troubled.append((WARNING, f"the path takes {link.mtu} bytes, {here.name} {size}", narrow, link))
    return _well(facts, "mtu", _together(facts, "mtu", troubled), lambda: "packets pass at full size")


def _ends(facts: Facts, link: HostLink) -> Tuple[Optional[Interface], Optional[Interface]]:
    source, target = facts.host(link.source).local, facts.host(link.target).local
    here = next((entry for entry in source.interfaces if entry.name == link.interface), None) if source else None
    there = next((entry for entry in target.interfaces if entry.address == link.address), None) if target else None
    return here, there


def _quarter(values: Sequence[float]) -> float:
    """Return what a quarter of the values reach: one bad host spoils half of the links between four, and the median."""
    return sorted(values)[len(values) // 4]


def latency(facts: Facts) -> List[Verdict]:
    troubled = []
    known = [link.latency for link, used in on_rails(facts) if used and link.latency is not None]
    typical, usual = (statistics.median(known), _quarter(known)) if known else (0.0, 0.0)
    for link, used in on_rails(facts):
        if link.latency is None:
            continue
        if used and link.latency > _SLOW_TRIP:
            text = f"a message takes {_SLOW_TRIP * 1e3:.0f} ms and more on {_rail(facts, link)}"
            remedy = "use hosts of one data centre, and a wired network; busy hosts answer late, too"
            troubled.append((WARNING, text, remedy, link))
        elif used and len(known) > 4 and link.latency > max(5 * usual, 2e-4):
            text = f"messages take five times as long as elsewhere on {_rail(facts, link)}"
            troubled.append((WARNING, text, "see whether these hosts are further away, or busy", link))
    if not known:
        return []
    return _well(
        facts, "latency", _together(facts, "latency", troubled), lambda: f"{duration(typical)} one way, typically"
    )


def bandwidth(facts: Facts) -> List[Verdict]:
    troubled = []
    known: Dict[str, List[float]] = {}
    for link, _ in on_rails(facts):
        if link.bandwidth is not None:
            known.setdefault(_rail(facts, link), []).append(link.bandwidth)
    typical = {rail: statistics.median(values) for rail, values in known.items()}
    usual = {rail: -_quarter([-value for value in values]) for rail, values in known.items()}
    for link, used in on_rails(facts):
        rail, level = _rail(facts, link), ERROR if used else WARNING
        if link.problem or link.stranger:
            continue
        if link.bandwidth is None:
            text = f"connections are made, but data does not pass on {rail}"
            remedy = "see to 'mtu' above and to firewalls that follow connections; try 'iperf3' between the two"
            troubled.append((level, text, remedy, link))
            continue
        ends = [end.speed for end in _ends(facts, link) if end is not None and end.speed > 0]
        if ends and link.bandwidth < min(*ends, _ONE_CORE) / 2:
            text = f"less than half of what {rail} should carry ({rate(min(ends))})"
            remedy = "see 'ethtool -S' for errors, whether others use the network now, and the rate of the switch port"
            troubled.append((WARNING, text, remedy, link))
        elif len(known[rail]) > 4 and link.bandwidth < usual[rail] / 3:
            text = f"less than a third of what other hosts have on {rail} ({rate(usual[rail])})"
            troubled.append((WARNING, text, "see to cable, switch port and uplink of these hosts", link))
        elif used and link.bandwidth < _SLOW:
            text = f"less than {rate(_SLOW)} on {rail}: a hundred MB take seconds to average"
            remedy = "use a faster network (--network-interface), and DDL_WIRE=bf16, which halves what is sent"
            troubled.append((WARNING, text, remedy, link))
    verdicts = _together(facts, "bandwidth", troubled) + _unequal_rails(facts, typical)
    if not typical:
        return verdicts
    return _well(
        facts,
        "bandwidth",
        verdicts,
        lambda: ", ".join(f"{rate(value)} on {rail}" for rail, value in sorted(typical.items())) + ", one connection",
    )


def _unequal_rails(facts: Facts, typical: Dict[str, float]) -> List[Verdict]:
    """Rails of which one carries twice what another does: the slow one is used, or is not what it should be."""
    used = {_rail(facts, link) for link, chosen in on_rails(facts) if chosen}
    hosts = tuple(host.name for host, _ in present(facts))
    if not typical or not used & set(typical):
        return []
    used_rail = max(used & set(typical), key=lambda rail: typical[rail])
    verdicts = []
    for rail, value in sorted(typical.items()):
        if rail in used:
            continue
        text = f"{rail} carries {rate(value)}, {used_rail} {rate(typical[used_rail])}"
        if value > 2 * typical[used_rail]:
            remedy = f"let data go by the faster one: --network-interface {rail}"
            verdicts.append(Verdict(WARNING, "bandwidth", hosts, text + ", which is the one used", remedy))
        elif value < typical[used_rail] / 2:
            remedy = f"if {rail} should be as fast, see 'ethtool {rail}' for its speed, and its cable and switch port"
            verdicts.append(Verdict(WARNING, "bandwidth", hosts, text, remedy))
    return verdicts


def clock(facts: Facts) -> List[Verdict]:
    troubled = []
    for link, _ in on_rails(facts):
        if link.offset is not None and abs(link.offset) - link.uncertainty > _CLOCK:
            text = f"clocks are {round(abs(link.offset))} s apart" if abs(link.offset) >= 1 else "clocks are apart"
            remedy = "start time synchronisation: chronyd, or 'timedatectl set-ntp true'; log lines and files mislead"
            troubled.append((WARNING, text, remedy, link))
    known = [abs(link.offset) for link, _ in on_rails(facts) if link.offset is not None]
    if not known:
        return []
    return _well(
        facts, "clock", _together(facts, "clock", troubled), lambda: f"clocks are at most {duration(max(known))} apart"
    )


CHECKS = (ports, mtu, latency, bandwidth, clock)
