"""This host's network interfaces and addresses, asked of the kernel (IPv4)."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from ddl.errors import ConfigError

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


@dataclass(frozen=True)
class Interface:
    """A network interface that is up and has an IPv4 address. ``speed`` is 0 where the kernel does not know it."""

    name: str
    address: str
    prefix: int = 24  #: bits of the network
    mtu: int = 1500
    speed: float = 0.0  #: bits per second, of real hardware
    carrier: bool = True  #: the other end of its cable is there

    @property
    def network(self) -> str:
        """Its network, as ``10.1.0.0/16``."""
        return str(ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False))


def addresses() -> Dict[str, str]:
    """Return the address of every interface that has one, by its name."""
    by_name = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError as error:
                if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):  # it has none, or is gone again
                    continue
                raise
            by_name[name] = socket.inet_ntoa(answer[20:24])
    return by_name


def interfaces() -> Tuple[Interface, ...]:
    """Return the interfaces that are up and have an address, but loopback."""
    result = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:

        def ask(request: int, name: str) -> bytes:
            return fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))[16:]

        for name, address in addresses().items():
            flags = struct.unpack_from("H", ask(_SIOCGIFFLAGS, name))[0]
            if flags & _IFF_LOOPBACK or not flags & _IFF_UP:
                continue
            mask = int.from_bytes(ask(_SIOCGIFNETMASK, name)[4:8], "big")
            mtu = struct.unpack_from("i", ask(_SIOCGIFMTU, name))[0]
            prefix = bin(mask).count("1")
            result.append(Interface(name, address, prefix, mtu, _speed(name), bool(flags & _IFF_RUNNING)))
    return tuple(result)


def networks() -> Dict[str, str]:
    """Return the networks that this host is on, and its address on each."""
    return {entry.network: entry.address for entry in interfaces() if entry.carrier}


def _speed(name: str) -> float:
    """Bits per second; 0 if unknown, as of virtual interfaces, which claim 10 Gb/s and mean nothing by it."""
    place = Path("/sys/class/net", name)
    try:
        return max(0.0, float((place / "speed").read_text()) * 1e6) if (place / "device").exists() else 0.0
    except (OSError, ValueError):
        return 0.0


def address_of(interface: str) -> str:
    """Return the address of an interface given by name, address or network (``10.1.0.0/16``). ConfigError."""
    here = addresses()
    if interface in here:
        return here[interface]
    try:
        network = ipaddress.ip_network(interface, strict=False)
    except ValueError:
        network = None
    for address in here.values():
        if network is not None and ipaddress.ip_address(address) in network:
            return address
    there = ", ".join(f"{name} ({address})" for name, address in here.items())
    raise ConfigError(f"there is no network interface {interface!r} on {socket.gethostname()}; it has {there}")


def source_towards(host: str) -> Optional[str]:
    """Return the address that this host's packets to ``host`` bear; None if its name or the way there is unknown."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # UDP: asks the routing table, sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def addresses_towards(hosts: Sequence[str]) -> List[str]:
    """Return this host's addresses, those first that its packets to ``hosts`` bear; loopback if there is no other."""
    candidates = [*map(source_towards, hosts), *addresses().values()]
    real = [address for address in candidates if address is not None and not address.startswith("127.")]
    return list(dict.fromkeys(real)) or ["127.0.0.1"]


def is_local(host: str) -> bool:
    """Return whether ``host`` is this machine, by its name or by an address of one of its interfaces."""
    if host in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        resolved: List[str] = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, socket.AF_INET)]
    except OSError:
        return False
    own = set(addresses().values())
    return any(address in own or address.startswith("127.") for address in resolved)
