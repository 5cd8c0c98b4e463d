"""The commands for ``ip`` and ``tc``, as lines of text. Nothing is run here.

On each rail a rack has a bridge ``rackN.R`` with a port ``HOST.R`` for each of its hosts, whose other end is the host's
``railR``; with several racks each bridge has an uplink ``upN.R`` to ``downN.R`` of one that joins them, ``core.R``. An
interface limits what it sends, so a wire is limited at both of its ends.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

from lab.shape import Shape, burst_bytes

__all__ = ["EVERYTHING", "Wiring", "no_openings_from", "of_fabric", "of_host"]

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


def of_host(shape: Shape, addresses: Sequence[str]) -> Wiring:
    """Return what gives a host's interfaces their addresses, one for each rail, and their rates."""
    names = [f"rail{rail}" for rail in range(len(shape.rails))]
    links = [f"addr add {address}/24 dev {name}" for name, address in zip(names, addresses)]
    return Wiring([*links, *(f"link set {name} up" for name in names)], _limits(list(zip(names, shape.rails))))


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
    number = int.from_bytes(bytes(map(int, address.split("."))), "big")
    ip_and_tcp = "40 0 0 12,21 0 9 2048,48 0 0 23,21 0 7 6"
    opens, comes_from = "48 0 0 47,84 0 0 18,21 0 4 2", f"32 0 0 26,21 0 2 {number}"
    high_port, drop = "40 0 0 36,53 1 0 32768", "6 0 0 4294967295,6 0 0 2"
    return f"13,{ip_and_tcp},{opens},{comes_from},{high_port},{drop}"
