"""Facts for ``ddl doctor``, made up: healthy hosts, and what may be wrong with one of them, its links or its GPUs."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

from ddl.net.interfaces import Interface
from ddl.tools.doctor.facts import Facts, HostFacts, HostLink, Local
from ddl.tools.doctor.gpu_facts import GpuFacts, HostGpus, PciLink

NAMES = ("a", "b", "c", "d")


def address(host: int, rail: int = 0) -> str:
    return f"10.1.{rail}.{host + 1}"


def healthy(hosts: int = 2, rails: int = 1) -> Facts:
    """All is well: ``hosts`` hosts of two ranks with ``rails`` rails."""
    numbers = range(hosts)
    described = []
    for number in numbers:
        local = Local(
            name=NAMES[number],
            version="1",
            python="3.11.1",
            interfaces=tuple(Interface(f"eth{rail}", address(number, rail)) for rail in range(rails)),
            chosen=address(number),
            routes={str(other): address(number) for other in numbers if other != number},
            names={NAMES[other]: (address(other),) for other in numbers},
            reverse={address(other): NAMES[other] for other in numbers},
        )
        described.append(HostFacts(number, NAMES[number], (2 * number, 2 * number + 1), local=local))
    links = [
        HostLink(
            source, target, address(target, rail), f"eth{rail}", f"eth{rail}", latency=2e-5, bandwidth=9e9, offset=1e-6
        )
        for rail in range(rails)
        for source in numbers
        for target in numbers
        if source != target
    ]
    return Facts(tuple(described), tuple(links), groups=tuple(host.ranks for host in described), script="train.py")


def with_local(facts: Facts, number: int, **changes: Any) -> Facts:
    hosts = list(facts.hosts)
    local = hosts[number].local
    assert local is not None
    hosts[number] = dataclasses.replace(hosts[number], local=dataclasses.replace(local, **changes))
    return dataclasses.replace(facts, hosts=tuple(hosts))


def with_links(facts: Facts, which: Callable[[HostLink], bool], **changes: Any) -> Facts:
    changed = tuple(dataclasses.replace(link, **changes) if which(link) else link for link in facts.links)
    assert changed != facts.links
    return dataclasses.replace(facts, links=changed)


def on_b(**changes: Any) -> Facts:
    return with_local(healthy(), 1, **changes)


def to_b(link: HostLink) -> bool:
    return link.target == 1 and link.address == address(1)


def of_rail_1(link: HostLink) -> bool:
    return link.interface == "eth1"


def with_problem(text: str) -> Facts:
    facts = healthy()
    gone = dataclasses.replace(facts.hosts[1], local=None, problem=text, finished=False)
    hosts, links = (facts.hosts[0], gone), ()
    return dataclasses.replace(facts, hosts=hosts, links=links, groups=((0, 1),))


def mtus(small: int) -> Facts:
    return on_b(interfaces=(Interface("eth0", address(1), mtu=small),))


def speed(bits: float) -> Facts:
    facts = with_links(healthy(), lambda link: True, bandwidth=4e9)
    for number in range(2):
        facts = with_local(facts, number, interfaces=(Interface("eth0", address(number), speed=bits),))
    return facts


def twins() -> Facts:
    names = {name: (address(0),) for name in "ab"}
    interfaces = (Interface("eth0", address(0)),)
    facts = on_b(chosen=address(0), routes={}, interfaces=interfaces, names=names, reverse={})
    return with_local(dataclasses.replace(facts, links=()), 0, routes={}, names=names, reverse={})


def cut_rail() -> Facts:
    def concerned(link: HostLink) -> bool:
        return of_rail_1(link) and 1 in (link.source, link.target)

    gone = {"problem": "unreachable", "ports": ("unreachable",) * 2, "latency": None, "bandwidth": None}
    return with_links(healthy(3, 2), concerned, **gone)


def unfinished() -> Facts:
    facts = healthy()
    return dataclasses.replace(facts, hosts=(facts.hosts[0], dataclasses.replace(facts.hosts[1], finished=False)))


def refused(*calls: str) -> Facts:
    return on_b(refused=calls, container="docker")


def blocked(problem: str, *ports: str) -> Facts:
    return with_links(healthy(), to_b, problem=problem, ports=ports or (problem, problem))


GOOD_LINK = PciLink(16, 16, 32.0, 32.0)


def gpu(number: int = 0, **changes: Any) -> GpuFacts:
    rates = {"registering": 2e9, "down": 52e9, "up": 50e9, "both_down": 40e9, "both_up": 39e9}
    good = GpuFacts(number, "NVIDIA H200", memory=141 << 30, link=GOOD_LINK, numa_node=0, copy_engines=3, **rates)
    return dataclasses.replace(good, **changes)


def on_gpus(*devices: GpuFacts, **changes: Any) -> Facts:
    """Host b has these GPUs; of a host of two ranks, one is enough where nobody says how many ranks there will be."""
    there = HostGpus(missing=False, version=13000, devices=devices, **changes)
    return dataclasses.replace(on_b(gpus=there), ranks_given=len(devices) != 1)


def with_link(**changes: Any) -> Facts:
    return on_gpus(gpu(link=dataclasses.replace(GOOD_LINK, **changes)))


def counted(facts: Facts) -> Facts:
    return dataclasses.replace(facts, ranks_given=True)


ONE_SLOW = with_links(healthy(4), lambda link: (link.source, link.target) == (1, 3), bandwidth=1e9)
ONE_FAR = with_links(healthy(4), lambda link: 2 in (link.source, link.target), latency=5e-4)
