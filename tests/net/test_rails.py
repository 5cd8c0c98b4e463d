"""Which networks are rails: those that really join all hosts, whatever else the hosts have."""

from __future__ import annotations

from typing import List, Sequence

import pytest

from ddl.net import rails
from ddl.net.interfaces import Interface
from ddl.net.rails import RailOffer, choose, places

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
    assert places("10.2.0.1, 10.1.0.1", "10.1.0.1") == [RailOffer("#0", "10.2.0.1"), RailOffer("#1", "10.1.0.1")]
