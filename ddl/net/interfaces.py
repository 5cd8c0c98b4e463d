"""This host's network interfaces and addresses, asked of the kernel. Link-local addresses of IPv6 are left out."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddl.errors import ConfigError
from ddl.net.address import is_loopback, resolve, socket_towards

__all__ = [
    "Interface",
    "address_of",
    "addresses",
    "addresses_towards",
    "interfaces",
    "is_local",
    "networks",
    "source_towards",
]

_SIOCGIFADDR = 0x8915
_SIOCGIFFLAGS, _SIOCGIFMTU, _SIOCGIFNETMASK = 0x8913, 0x8921, 0x891B
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_LINK_LOCAL = 0x20  # a scope there, of linux/ipv6.h
# Flags there, of linux/if_addr.h: one that lives for days, one that another host may have, one that is going.
_TEMPORARY, _DUPLICATE, _DEPRECATED, _TENTATIVE = 0x1, 0x8, 0x20, 0x40


@dataclass(frozen=True)
class Interface:
    """A network interface that is up, with one of its addresses. ``speed`` is 0 where the kernel does not know it."""

    name: str
    address: str
    prefix: int = 24  #: bits of the network
    mtu: int = 1500
    speed: float = 0.0  #: bits per second, of real hardware
    carrier: bool = True  #: the other end of its cable is there

    @property
    def network(self) -> str:
        """Its network, as ``10.1.0.0/16`` or ``fd77::/64``."""
        return str(ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False))


class _Address(NamedTuple):
    name: str  #: of its interface
    address: str
    prefix: int


def addresses() -> List[str]:
    """Return the addresses of this host: those of IPv4 first, and loopback, too."""
    return [entry.address for entry in _addresses()]


def _addresses() -> List[_Address]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return [*_addresses_of_ipv4(probe), *_addresses_of_ipv6()]


def _addresses_of_ipv4(probe: socket.socket) -> List[_Address]:
    addresses = []
    for _, name in socket.if_nameindex():
        try:
            address = _ask(probe, _SIOCGIFADDR, name)[4:8]
            mask = int.from_bytes(_ask(probe, _SIOCGIFNETMASK, name)[4:8], "big")
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):  # it has none, or is gone again
                continue
            raise
        addresses.append(_Address(name, socket.inet_ntoa(address), bin(mask).count("1")))
    return addresses


def _addresses_of_ipv6() -> List[_Address]:
    """Return the addresses that last, each interface's in an order that is the same on all hosts of its networks."""
    try:
        lines = _IPV6_ADDRESSES.read_text().splitlines()
    except OSError:  # there is no IPv6 here
        return []
    usable = []
    for line in lines:
        digits, _, prefix, scope, flags, name = line.split()
        if int(scope, 16) & _LINK_LOCAL or int(flags, 16) & (_TEMPORARY | _DUPLICATE | _TENTATIVE):
            continue
        address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
        usable.append((bool(int(flags, 16) & _DEPRECATED), digits, _Address(name, address, int(prefix, 16))))
    return [address for _, _, address in sorted(usable)]


def _ask(probe: socket.socket, request: int, name: str) -> bytes:
    return fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))[16:]


def interfaces() -> Tuple[Interface, ...]:
    """Return the interfaces that are up and have an address, but loopback; one entry for each address."""
    result = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, address, prefix in _addresses():
            flags = struct.unpack_from("H", _ask(probe, _SIOCGIFFLAGS, name))[0]
            if flags & _IFF_LOOPBACK or not flags & _IFF_UP:
                continue
            mtu = struct.unpack_from("i", _ask(probe, _SIOCGIFMTU, name))[0]
            result.append(Interface(name, address, prefix, mtu, _speed(name), bool(flags & _IFF_RUNNING)))
    return tuple(result)


def networks() -> Dict[str, str]:
    """Return the networks that this host is on, and its address on each."""
    return {entry.network: entry.address for entry in reversed(interfaces()) if entry.carrier}


def _speed(name: str) -> float:
    """Bits per second; 0 if unknown, as of virtual interfaces, which claim 10 Gb/s and mean nothing by it."""
    place = Path("/sys/class/net", name)
    try:
        return max(0.0, float((place / "speed").read_text()) * 1e6) if (place / "device").exists() else 0.0
    except (OSError, ValueError):
        return 0.0


def address_of(interface: str) -> str:
    """Return the address of an interface given by name, address or network (``10.1.0.0/16``). ConfigError.

    By its name: that of IPv4, if it has one.
    """
    here = _addresses()
    for entry in here:
        if entry.name == interface:
            return entry.address
    with contextlib.suppress(ValueError):
        network = ipaddress.ip_network(interface, strict=False)
        for entry in here:
            if ipaddress.ip_address(entry.address) in network:
                return entry.address
    there = ", ".join(f"{name} ({address})" for name, address, _ in here)
    raise ConfigError(f"there is no network interface {interface!r} on {socket.gethostname()}; it has {there}")


def source_towards(host: str) -> Optional[str]:
    """Return the address that this host's packets to ``host`` bear; None if its name or the way there is unknown."""
    with contextlib.suppress(OSError):
        for address in resolve(host):
            with contextlib.suppress(OSError), socket_towards(address, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))  # UDP: asks the routing table, sends nothing
                return str(probe.getsockname()[0])
    return None


def addresses_towards(hosts: Sequence[str]) -> List[str]:
    """Return this host's addresses, those first that its packets to ``hosts`` bear; loopback if there is no other."""
    candidates = [*map(source_towards, hosts), *addresses()]
    real = [address for address in candidates if address is not None and not is_loopback(address)]
    return list(dict.fromkeys(real)) or ["127.0.0.1"]


def is_local(host: str) -> bool:
    """Return whether ``host`` is this machine, by its name or by an address of one of its interfaces."""
    if host in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        resolved = resolve(host)
    except OSError:
        return False
    own = addresses()
    return any(address in own or is_loopback(address) for address in resolved)
