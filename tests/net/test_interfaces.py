"""Which addresses a host is taken to have. Real hosts with IPv6 are in tests/cluster/test_ipv6.py."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from ipv6 import needs_ipv6

from ddl.errors import ConfigError
from ddl.net import interfaces
from ddl.net.interfaces import address_of, addresses, addresses_towards, is_local, source_towards

#: As the kernel writes it: address, number, bits of the network, scope, flags, name.
LINES = """\
fd770000000000000000000000000002 02 40 00 80      lo
fd990000000000000000000000000002 02 40 00 80      lo
fd770000000000000000000000000007 02 40 00 01      lo
fd770000000000000000000000000008 02 40 00 40      lo
fd770000000000000000000000000009 02 40 00 08      lo
fd550000000000000000000000000002 02 40 00 20      lo
fe80000000000000143be9fffe5e5170 02 40 20 80      lo
00000000000000000000000000000001 01 80 10 80      lo
"""


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "if_inet6"
    monkeypatch.setattr(interfaces, "_IPV6_ADDRESSES", path)
    return path


def test_addresses_that_last_and_mean_something_elsewhere(file: Path) -> None:
    """Not those of a link, nor temporary ones, nor such as another host may have; those that go come last."""
    file.write_text(LINES)
    ipv4 = [address for address in addresses() if ":" not in address]
    assert "127.0.0.1" in ipv4
    assert addresses() == [*ipv4, "::1", "fd77::2", "fd99::2", "fd55::2"]


def test_a_host_without_ipv6(file: Path) -> None:
    assert "127.0.0.1" in addresses() and not any(":" in address for address in addresses())


def test_an_interface_is_known_by_name_address_or_network(file: Path) -> None:
    file.write_text(LINES)
    for given, address in [
        ("lo", "127.0.0.1"),
        ("127.0.0.0/8", "127.0.0.1"),
        ("fd77::/64", "fd77::2"),
        ("FD77:0::0002", "fd77::2"),
        ("fd99::/16", "fd99::2"),
    ]:
        assert address_of(given) == address
    for given in ("fd11::/64", "fd77::7", "fe80::/64", "ib0"):
        with pytest.raises(ConfigError, match=rf"no network interface '{given}' .*lo \(127.0.0.1\).*lo \(fd77::2\)"):
            address_of(given)


@needs_ipv6
def test_the_way_to_a_host(file: Path) -> None:
    file.write_text(LINES)
    assert source_towards("127.0.0.1") == "127.0.0.1" and source_towards("::1") == "::1"
    assert source_towards("no-such-host.invalid") is None
    towards = addresses_towards(["::1", "127.0.0.1"])
    assert "::1" not in towards and "127.0.0.1" not in towards and "fd77::2" in towards


def test_this_host(file: Path) -> None:
    file.write_text(LINES)
    for name in ("localhost", "127.0.0.3", "::1", "fd77::2", "FD99:0::2", socket.gethostname()):
        assert is_local(name), name
    for name in ("fd11::1", "192.0.2.1", "no-such-host.invalid"):
        assert not is_local(name), name
