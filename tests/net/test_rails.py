"""Which networks are rails: those that really join all hosts, whatever else the hosts have."""

from __future__ import annotations

from typing import List, Sequence

import pytest

from ddl.net import rails
from ddl.net.interfaces import Interface
from ddl.net.rails import RailOffer, choose, family_problem, offer_on, places

A, B, DOCKER = "10.1.0.0/16", "10.2.0.0/16", "172.17.0.0/16"


def offers(host: int, *networks: str, speed: float = 0.0) -> List[RailOffer]:
    return [
        RailOffer(network, "172.17.0.1" if network == DOCKER else f"{network}.{host}", 7, speed) for network in networks
    ]


@pytest.mark.parametrize(
    ("hosts", "offered", "most", "chosen"),
    [
        ("ab", [offers(1, A, B), offers(2, A, B)], 0, (A, B)),
        ("ab", [offers(1, A, B), offers(2, A, B)], 1, (A,)),
        ("ab", [offers(1, A, B), offers(2, A)], 0, (A,)),  # one host lacks the second network
        ("ab", [offers(1, A, DOCKER, B), offers(2, A, DOCKER, B)], 0, (A, B)),  # the same address on both
        ("aabb", [offers(1, A, B), offers(1, A, B), offers(2, A, B), offers(2, B, A)], 0, (A,)),  # first ones differ
        ("aabb", [offers(1, A, B), offers(1, A, B), offers(2, A, B), offers(2, A, B)], 0, (A, B)),
        ("aa", [offers(1, A, B), offers(1, A, B)], 0, (A,)),  # one host
        ("a", [offers(1, A, B)], 0, (A,)),
        ("ab", [offers(1, "#0", "#1"), offers(2, "#0", "#1")], 0, ("#0", "#1")),  # somebody said so
        ("aa", [offers(1, "#0", "#1"), offers(1, "#0", "#1")], 0, ("#0", "#1")),
    ],
)
def test_rails(hosts: str, offered: Sequence[Sequence[RailOffer]], most: int, chosen: Sequence[str]) -> None:
    assert choose(list(hosts), offered, most) == tuple(chosen)


def test_a_much_slower_network_is_no_rail() -> None:
    """Its share would be waited for. Where the kernel knows no speed, it may be one."""
    for slow, chosen in [(1e9, (A,)), (25e9, (A, B)), (0.0, (A, B))]:
        offered = [offers(host, A, speed=100e9) + offers(host, B, speed=slow) for host in (1, 2)]
        assert choose(["a", "b"], offered, 0) == chosen
    # The main one stays, however slow.
    offered = [offers(host, A, speed=1e9) + offers(host, B, speed=100e9) for host in (1, 2)]
    assert choose(["a", "b"], offered, 0) == (A, B)


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    here = (
        Interface("eth0", "10.1.0.1", 16),
        Interface("eth1", "10.2.0.1", 16, speed=1e9),
        Interface("down", "10.3.0.1", 16, carrier=False),
        Interface("alone", "10.4.0.1", 32),
    )
    monkeypatch.setattr(rails, "interfaces", lambda: here)
    eth0, eth1 = RailOffer(A, "10.1.0.1"), RailOffer(B, "10.2.0.1", 0, 1e9)
    assert places("", "10.1.0.1") == [eth0, eth1]
    assert places("", "10.2.0.1") == [eth1, eth0]
    assert places("", "127.0.0.1") == [RailOffer("#0", "127.0.0.1")]
    assert places("", "::1") == [RailOffer("#0", "::1")]
    assert places("10.2.0.1, 10.1.0.1", "10.1.0.1") == [RailOffer("#0", "10.2.0.1"), RailOffer("#1", "10.1.0.1")]


A6, B6 = "fd77::/64", "fd77:0:0:1::/64"


def offers6(host: int, *networks: str) -> List[RailOffer]:
    return [RailOffer(network, network.replace("::/64", f"::{host}"), 7) for network in networks]


def test_places_of_both_versions_of_ip(monkeypatch: pytest.MonkeyPatch) -> None:
    """What leads to the store is first, then its version of IP, and each interface has one address of each."""
    here = (
        Interface("eth0", "10.1.0.1", 16),
        Interface("eth1", "10.2.0.1", 16),
        Interface("eth0", "2001:db8::7", 128),
        Interface("eth0", "fd77::1", 64),
        Interface("eth0", "fd99::1", 64),
        Interface("eth1", "fd77:0:0:1::1", 64),
    )
    monkeypatch.setattr(rails, "interfaces", lambda: here)
    eth0, eth1 = RailOffer(A, "10.1.0.1"), RailOffer(B, "10.2.0.1")
    eth0_6, eth1_6 = RailOffer(A6, "fd77::1"), RailOffer(B6, "fd77:0:0:1::1")
    assert places("", "10.1.0.1") == [eth0, eth1, eth0_6, eth1_6]
    assert places("", "10.2.0.1") == [eth1, eth0, eth0_6, eth1_6]
    assert places("", "fd77::1") == [eth0_6, eth1_6, eth0, eth1]
    assert places("", "fd99::1") == [RailOffer("fd99::/64", "fd99::1"), eth1_6, eth0, eth1]
    assert places("", "2001:db8::7") == [RailOffer("2001:db8::7/128", "2001:db8::7"), eth1_6, eth0, eth1]


@pytest.mark.parametrize(
    ("offered", "chosen", "at"),
    [
        # All have both: the one by which all came to the store, and each cable once.
        ([offers(h, A, B) + offers6(h, A6, B6) for h in (1, 2)], (A, B), [f"{A}.1", f"{A}.2"]),
        ([offers6(h, A6, B6) + offers(h, A, B) for h in (1, 2)], (A6, B6), ["fd77::1", "fd77::2"]),
        # One came over the other: it has no way over IPv4.
        ([offers(1, A) + offers6(1, A6), offers6(2, A6) + offers(2, A)], (A6,), ["fd77::1", "fd77::2"]),
        ([offers6(1, A6) + offers(1, A), offers(2, A) + offers6(2, A6)], (A6,), ["fd77::1", "fd77::2"]),
        ([offers(1, A) + offers6(1, A6), offers6(2, A6)], (A6,), ["fd77::1", "fd77::2"]),
        ([offers(1, A) + offers6(1, A6), offers6(2, A6) + offers(2, DOCKER)], (A6,), ["fd77::1", "fd77::2"]),
        # One has none: IPv4, if the other has it.
        ([offers(1, A), offers6(2, A6) + offers(2, A)], (A,), [f"{A}.1", f"{A}.2"]),
        # No network in common: routers join them, over the same version.
        ([offers(1, A) + offers6(1, A6), offers(2, B) + offers6(2, B6)], (A,), [f"{A}.1", f"{B}.2"]),
        ([offers6(1, A6) + offers(1, A), offers6(2, B6) + offers(2, A)], (A6,), ["fd77::1", "fd77:0:0:1::2"]),
    ],
)
def test_data_takes_one_version_of_ip(
    offered: Sequence[Sequence[RailOffer]], chosen: Sequence[str], at: Sequence[str]
) -> None:
    assert choose(["a", "b"], offered, 0) == chosen
    assert [offer_on(chosen, 0, offer).address for offer in offered] == at
    for number, rail in enumerate(chosen):
        assert {offer_on(chosen, number, offer).network for offer in offered} == {rail} or len(chosen) == 1


def test_ddl_interface_may_name_both_versions_of_ip() -> None:
    """It says what each rail is; one whose ends differ is none."""
    pairs = [[RailOffer("#0", "10.1.0.1"), RailOffer("#1", "fd77::1")], [RailOffer("#0", "10.1.0.2")]]
    pairs[1].append(RailOffer("#1", "fd77::2"))
    assert choose(["a", "b"], pairs, 0) == ("#0", "#1")
    assert [offer_on(("#0", "#1"), 1, offer).address for offer in pairs] == ["fd77::1", "fd77::2"]
    pairs[1][1] = RailOffer("#1", "10.2.0.2")
    assert choose(["a", "b"], pairs, 0) == ("#0",)
    assert offer_on(("#0",), 0, pairs[1]).address == "10.1.0.2"


def test_hosts_that_cannot_reach_one_another_are_named() -> None:
    v4, v6 = ["10.1.0.1"], ["fd77::1"]
    assert family_problem(["a", "b"], [v4, v4]) == family_problem(["a", "b"], [v4 + v6, v6]) == ""
    problem = family_problem(list("abcdefg"), [v4, v6, v4, v4, v4, v6, v4 + v6])
    assert problem.startswith("a, c, d and 1 more can be reached over IPv4 only, b, f over IPv6 only; give the hosts")
