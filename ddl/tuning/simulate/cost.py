"""The alpha-beta model of a machine: what a message and a byte cost, and which resources are shared.

A ``Machine`` consists of nested units: ranks in a host, hosts in a rack, racks. A unit is connected to its siblings by
a *port*: a host's network interface, a rack's uplink. A port carries a number of bytes per second in each direction,
for all ranks in the unit together. A message passes the ports of every unit that it leaves and of every unit that it
enters.
Two numbers per network, latency (alpha) and bandwidth (1/beta), are Hockney's model (1994); the time that a message
occupies a processor is the *o* of LogP (Culler et al., 1993). Plain immutable data, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod
from typing import List, Optional, Sequence, Tuple

from ddl.errors import ConfigError
from ddl.topology import Link

__all__ = ["Core", "GpuLinks", "Level", "Machine", "Port", "SharedMemory", "Uses"]

#: A resource of a machine: (kind, level, number). The kinds are "out" and "in" of a port, "memory" of a host, "core" of
#: a rank, and "down", "up" and "both" of the link of a GPU.
Port = Tuple[str, int, int]
#: What each byte takes of each resource: bytes of a port or of memory, seconds of a core.
Uses = Tuple[Tuple[Port, float], ...]


@dataclass(frozen=True)
class Level:
    """``size`` units that are connected: ranks of a host (level 0), hosts of a rack, racks.

    ``link`` is the port of one unit. Its latency is that of a message between units of this level; its bandwidth is per
    direction and rail. A rate limiter lets ``burst_bytes`` pass at ``burst_bytes_per_s`` before it limits.
    """

    name: str
    size: int
    link: Optional[Link] = None  #: None: level 0 of ranks that share memory, or of hosts with one rank
    burst_bytes: float = 0.0
    burst_bytes_per_s: float = inf

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.burst_bytes < inf or not self.burst_bytes_per_s > 0:
            raise ConfigError(f"{self}: size must be at least 1, the burst's bytes >= 0 and finite, and its rate > 0")

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Return what one port carries in each direction, over all rails."""
        return inf if self.link is None else self.link.bandwidth_bytes_per_s * self.link.rails


@dataclass(frozen=True)
class SharedMemory:
    """Memory that the ranks of a host share: how long a notice takes, and the bytes per second read and written."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.latency_s < inf and self.bandwidth_bytes_per_s > 0):
            raise ConfigError(f"{self}: latency must be >= 0 and finite, and bandwidth > 0")


@dataclass(frozen=True)
class Core:
    """The processor of one rank. Rates are in bytes per second; ``inf``: it takes no time."""

    overhead_s: float = 0.0  #: for each message, at the sender and at the receiver
    send_bytes_per_s: float = inf
    receive_bytes_per_s: float = inf
    reduce_bytes_per_s: float = inf  #: for messages that are reduced
    copy_bytes_per_s: float = inf  #: for bytes read and written by steps in shared memory

    def __post_init__(self) -> None:
        rates = (self.send_bytes_per_s, self.receive_bytes_per_s, self.reduce_bytes_per_s, self.copy_bytes_per_s)
        if not 0 <= self.overhead_s < inf or not all(rate > 0 for rate in rates):
            raise ConfigError(f"{self}: the overhead must be >= 0 and finite, and rates > 0")


@dataclass(frozen=True)
class GpuLinks:
    """The links of a host's GPUs to its memory, through which each rank's arrays come down and their results go up.

    The ranks of a host share ``links`` of them evenly, in their order. A rank's copies of one direction run one after
    the other, as on a stream; ``latency_s`` later their end is seen.
    """

    links: int
    down_bytes_per_s: float
    up_bytes_per_s: float
    both_bytes_per_s: float = inf  #: of both directions together
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        rates = (self.down_bytes_per_s, self.up_bytes_per_s, self.both_bytes_per_s)
        if self.links < 1 or not all(rate > 0 for rate in rates) or not 0 <= self.latency_s < inf:
            raise ConfigError(f"{self}: links must be at least 1, rates > 0, and latency >= 0 and finite")


@dataclass(frozen=True)
class Machine:
    """Levels, innermost first; ranks are numbered along them: 0 and 1 are neighbours in the first host.

    ``wire_bytes_per_byte``: the bytes that a byte of payload takes on a port, including the headers of packets.
    """

    levels: Tuple[Level, ...]
    memory: Optional[SharedMemory] = None  #: None: ranks of a host exchange messages over level 0
    core: Core = Core()
    wire_bytes_per_byte: float = 1.0
    gpus: Optional[GpuLinks] = None  #: None: arrays are in the hosts' memory

    def __post_init__(self) -> None:
        if not self.levels:
            raise ConfigError("a machine needs at least one level: the ranks of a host")
        for number, level in enumerate(self.levels):
            if level.link is None and level.size > 1 and (number > 0 or self.memory is None):
                raise ConfigError(f"level {level.name!r} joins {level.size} units, but it has no link; give it one")
        if not self.wire_bytes_per_byte >= 1:
            raise ConfigError(f"wire_bytes_per_byte is {self.wire_bytes_per_byte}; with headers it is at least 1")
        if self.gpus is not None and self.ranks_per_host % self.gpus.links:
            raise ConfigError(
                f"{self.gpus.links} links of GPUs for {self.ranks_per_host} ranks of a host; "
                "give each link as many ranks"
            )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.spans[-1]

    @property
    def ranks_per_host(self) -> int:
        """Number of ranks in one host."""
        return self.levels[0].size

    @cached_property
    def spans(self) -> Tuple[int, ...]:
        """Number of ranks in one group of each level: a host, a rack, all."""
        return tuple(prod(level.size for level in self.levels[: i + 1]) for i in range(len(self.levels)))

    @cached_property
    def unit_spans(self) -> Tuple[int, ...]:
        """Number of ranks in each unit that shares something: a GPU's link, a host, a rack; without all ranks."""
        return (*self._link_span, *self.spans[:-1])

    @property
    def _link_span(self) -> Tuple[int, ...]:
        return () if self.gpus is None else (self.ranks_per_host // self.gpus.links,)

    def hosts(self) -> List[Sequence[int]]:
        """Return the ranks that share memory, group by group: what ``ddl._comm.group.discover`` takes."""
        step = self.ranks_per_host if self.memory is not None else 1
        return [range(first, first + step) for first in range(0, self.size, step)]

    def level_of(self, a: int, b: int) -> int:
        """Return the lowest level at which two ranks are in one group; 0 inside a host."""
        return next(i for i, span in enumerate(self.spans) if a // span == b // span)

    def latency(self, a: int, b: int) -> float:
        """Return the seconds from the end of sending a message from rank ``a`` to ``b`` until it arrives."""
        level = self.level_of(a, b)
        if level == 0 and self.memory is not None:
            return self.memory.latency_s
        link = self.levels[level].link
        return 0.0 if link is None else link.latency_s

    def message(self, a: int, b: int, *, reduces: bool) -> Uses:
        """Return what a byte from rank ``a`` to ``b`` takes; ``reduces``: the receiver adds it to its own."""
        core = self.core
        taken = 1 / core.receive_bytes_per_s + (1 / core.reduce_bytes_per_s if reduces else 0.0)
        cores = ((("core", 0, a), 1 / core.send_bytes_per_s), (("core", 0, b), taken))
        level = self.level_of(a, b)
        if level == 0 and self.memory is not None:
            ports: Uses = ((("memory", 0, a // self.ranks_per_host), 4.0),)  # copied in, and out: read and written
        elif level == 0:
            ports = ((("out", 0, a), 1.0), (("in", 0, b), 1.0))
        else:
            wire, units = self.wire_bytes_per_byte, self.spans
            ports = tuple(
                port
                for i in range(1, level + 1)
                for port in ((("out", i, a // units[i - 1]), wire), (("in", i, b // units[i - 1]), wire))
            )
        return ports + tuple((port, weight) for port, weight in cores if weight > 0)

    def local(self, rank: int) -> Uses:
        """Return what a byte takes if a step of ``rank`` reads or writes it in memory."""
        uses: Uses = () if self.memory is None else ((("memory", 0, rank // self.ranks_per_host), 1.0),)
        rate = self.core.copy_bytes_per_s
        return uses if rate == inf else (*uses, (("core", 0, rank), 1 / rate))

    def staging(self, rank: int, direction: str) -> Uses:
        """Return what a byte takes on its way between the GPU of ``rank`` and its host: ``direction`` down or up."""
        (span,) = self._link_span
        link: Uses = ((direction, 0, rank // span), 1.0), (("both", 0, rank // span), 1.0)
        return link if self.memory is None else (*link, (("memory", 0, rank // self.ranks_per_host), 1.0))

    def capacity(self, port: Port) -> Tuple[float, float, float]:
        """Return a resource's units per second, and the units and the rate of its burst."""
        kind, number, _ = port
        if kind == "core":
            return 1.0, 0.0, inf
        if kind == "memory":
            return (inf if self.memory is None else self.memory.bandwidth_bytes_per_s), 0.0, inf
        if self.gpus is not None and kind in ("down", "up", "both"):
            return getattr(self.gpus, f"{kind}_bytes_per_s"), 0.0, inf
        level = self.levels[number]
        return level.bandwidth_bytes_per_s, level.burst_bytes, level.burst_bytes_per_s

    def members(self, port: Port) -> range:
        """Return the ranks of the unit that a resource belongs to."""
        kind, level, unit = port
        if kind in ("down", "up", "both"):
            (span,) = self._link_span
            return range(unit * span, (unit + 1) * span)
        if kind == "core" or (kind != "memory" and level == 0):
            return range(unit, unit + 1)
        span = self.spans[0 if kind == "memory" else level - 1]
        return range(unit * span, (unit + 1) * span)

    def with_hosts(self, hosts: int) -> Machine:
        """Return this machine with ``hosts`` hosts, in full racks. Raises ``ConfigError`` if they do not fill racks."""
        levels, remaining = [self.levels[0]], hosts
        for level in self.levels[1:-1]:
            here = min(level.size, remaining)
            if remaining % here:
                raise ConfigError(f"{hosts} hosts do not fill whole units of {level.size} ({level.name})")
            levels.append(replace(level, size=here))
            remaining //= here
        if len(self.levels) > 1:
            levels.append(replace(self.levels[-1], size=remaining))
        elif hosts > 1:
            raise ConfigError(f"{hosts} hosts: the machine has no network between hosts; add a [[network]]")
        return replace(self, levels=tuple(levels))
