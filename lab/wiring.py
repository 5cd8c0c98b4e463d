"""The commands for ``ip`` and ``tc``, as lines of text. Nothing is run here.

On each rail a rack has a bridge ``rackN.R`` with a port ``HOST.R`` for each of its hosts, whose other end is the host's
``railR``; with several racks each bridge has an uplink ``upN.R`` to ``downN.R`` of one that joins them, ``core.R``. An
interface limits what it sends, so a wire is limited at both of its ends.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import List, NamedTuple, Optional, Sequence, Tuple

from lab.shape import Shape, burst_bytes

__all__ = ["EVERYTHING", "Wiring", "no_openings_from", "nothing_from", "of_fabric", "of_host"]

EVERYTHING = "1,6 0 0 2"  #: the bytecode that drops whatever comes by; see no_openings_from


class Wiring(NamedTuple):
    """Standard input, in lines, of ``ip -batch`` and then of ``tc -batch`` in one network."""

    ip: Sequence[str]
    tc: Sequence[str] = ()


def of_fabric(shape: Shape, hosts: Sequence[str], pids: Sequence[str]) -> Wiring:
    """Return what makes the network of the racks; ``pids`` are the first processes of the hosts."""
    links = ["link set lo up"]
    sending: List[Tuple[str, Optional[int]]] = []
    for rail, rate in enumerate(shape.rails):
        for bridge in [f"rack{rack}.{rail}" for rack in range(shape.racks)] + [f"core.{rail}"]:
            links += [f"link add {bridge} type bridge stp_state 0 forward_delay 0", f"link set {bridge} up"]
        for rack in range(shape.racks):
            up, down = f"up{rack}.{rail}", f"down{rack}.{rail}"
            links += [f"link add {up} type veth peer name {down}", f"link set {down} master core.{rail} up"]
            links += [f"link set {up} master rack{rack}.{rail} up"]
            sending += [(up, shape.uplink), (down, shape.uplink)]
        for number, (host, pid) in enumerate(zip(hosts, pids)):
            port = f"{host}.{rail}"
            links += [f"link add {port} type veth peer name rail{rail} netns {pid}"]
            links += [f"link set {port} master rack{shape.rack(number)}.{rail} up"]
            sending += [(port, rate)]
    return Wiring(links, _limits(sending))


def of_host(shape: Shape, addresses: Sequence[Sequence[str]]) -> Wiring:
    """Return what gives a host's interfaces their addresses, which are given by rail, and their rates."""
    names = [f"rail{rail}" for rail in range(len(shape.rails))]
    links = [_addition(address, name) for name, its in zip(names, addresses) for address in its]
    return Wiring([*links, *(f"link set {name} up" for name in names)], _limits(list(zip(names, shape.rails))))


def _addition(address: str, interface: str) -> str:
    """An address of IPv6 could not be used for a second, unless nobody looks whether another host has it."""
    return f"addr add {address}/{'64 nodad' if ':' in address else 24} dev {interface}"


def _limits(sending: Sequence[Tuple[str, Optional[int]]]) -> List[str]:
    return [
        f"qdisc add dev {name} root tbf rate {rate}bit burst {burst_bytes(rate)} latency 20ms"
        for name, rate in sending
        if rate is not None
    ]


def no_openings_from(address: str) -> str:
    """Return the bytecode that drops what would open a TCP connection from ``address`` to a port from 32768 up.

    A classifier in classic BPF, as there is no nftables in every kernel: IP, TCP, SYN without ACK, source, port.
    """
    protocol, tcp = (23, 34) if ip_address(address).version == 4 else (20, 54)  # after Ethernet
    loads = [*_from(address), (f"48 0 0 {protocol}", 6), (f"48 0 0 {tcp + 13},84 0 0 18", 2)]
    return _dropping(loads, [f"40 0 0 {tcp + 2}", "53 1 0 32768"])


def nothing_from(address: str) -> str:
    """Return the bytecode that drops whatever comes from ``address``; see ``no_openings_from``."""
    return _dropping(_from(address))


def _from(address: str) -> List[Tuple[str, int]]:
    source = ip_address(address).packed
    kind, begin = (0x800, 26) if len(source) == 4 else (0x86DD, 22)
    words = [(begin + at, int.from_bytes(source[at : at + 4], "big")) for at in range(0, len(source), 4)]
    return [("40 0 0 12", kind), *((f"32 0 0 {offset}", word) for offset, word in words)]


def _dropping(loads: Sequence[Tuple[str, int]], last: Sequence[str] = ("5 0 0 1",)) -> str:
    """Return the bytecode that drops packets of which each of ``loads`` gives that number.

    ``last``: what comes behind them; it skips one instruction if the packet is to be dropped, and else none.
    """
    lines = [*last, "6 0 0 4294967295", "6 0 0 2"]  # pass; drop
    for load, wanted in reversed(loads):
        lines = [*load.split(","), f"21 0 {len(lines) - 2} {wanted}", *lines]  # else to "pass"
    return ",".join([str(len(lines)), *lines])
