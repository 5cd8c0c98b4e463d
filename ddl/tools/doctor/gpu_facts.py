"""Plain data about the GPUs of a host, as ``gpu_probe.py`` finds them. Rates are in bytes per second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple

__all__ = ["EXCLUSIVE", "PROHIBITED", "GpuFacts", "HostGpus", "PciLink", "gpus_from_json"]

PROHIBITED, EXCLUSIVE = 2, 3  #: compute modes: closed to all processes; open to one at a time

#: The generation of PCI Express by its gigatransfers per second, and the payload bits of each bit on a lane.
_GENERATIONS = {2.5: (1, 0.8), 5.0: (2, 0.8), 8.0: (3, 128 / 130), 16.0: (4, 128 / 130), 32.0: (5, 128 / 130)}
_GENERATIONS[64.0] = (6, 0.98)


@dataclass(frozen=True)
class PciLink:
    """The link of a GPU to the host, while it copied, and the best that the GPU could have. 0: not known."""

    lanes: int = 0
    most_lanes: int = 0
    speed: float = 0.0  #: gigatransfers per second and lane
    top_speed: float = 0.0

    @property
    def narrow(self) -> bool:
        """Whether it has fewer lanes than the GPU could use."""
        return 0 < self.lanes < self.most_lanes

    @property
    def slow(self) -> bool:
        """Whether its lanes are slower than the GPU's."""
        return 0 < self.speed < self.top_speed

    @property
    def bytes_per_s(self) -> float:
        """Return what it carries in one direction; 0: not known."""
        _, share = _GENERATIONS.get(self.speed, (0, 0.0))
        return self.lanes * self.speed * 1e9 / 8 * share

    def __str__(self) -> str:
        now, most = _generation(self.speed, self.lanes), _generation(self.top_speed, self.most_lanes)
        if not now:
            return ""
        return f"{now} of {most}" if self.narrow or self.slow else now


def _generation(speed: float, lanes: int) -> str:
    if not lanes:
        return ""
    number, _ = _GENERATIONS.get(speed, (0, 0.0))
    return f"PCIe {number} x{lanes}" if number else f"PCIe x{lanes}"


@dataclass(frozen=True)
class GpuFacts:
    """One GPU. ``problem``: why arrays on it cannot be used, with its number."""

    number: int = 0
    name: str = ""
    problem: str = ""
    address: str = ""  #: on the PCI bus
    memory: int = 0  #: bytes
    capability: str = ""  #: "9.0"
    copy_engines: int = -1  #: copies under way at once; -1: not known
    compute_mode: int = 0
    numa_node: int = -1  #: of the host; -1: not known
    link: PciLink = PciLink()
    registering: float = 0.0  #: of host memory with the driver; 0: refused
    refusal: str = ""
    down: float = 0.0  #: copies to the host alone
    up: float = 0.0
    both_down: float = 0.0  #: while copies go up, too
    both_up: float = 0.0
    words_problem: str = ""  #: why streams cannot write words


@dataclass(frozen=True)
class HostGpus:
    """The driver and the GPUs of a host. As it is by default, there is no driver."""

    known: bool = True  #: the host could be asked
    missing: bool = True  #: there is no library of a driver
    problem: str = ""  #: why the driver cannot be used
    library: str = ""  #: DDL_CUDA_LIBRARY
    visible: Optional[str] = None  #: CUDA_VISIBLE_DEVICES; None: it is not set
    version: int = 0  #: CUDA's that the driver knows: 1000 * major + 10 * minor
    devices: Tuple[GpuFacts, ...] = ()

    @property
    def cuda(self) -> str:
        """Return ``13.0``."""
        return f"{self.version // 1000}.{self.version % 1000 // 10}" if self.version else "of an unknown version"

    @property
    def usable(self) -> Tuple[GpuFacts, ...]:
        """The GPUs that have no problem."""
        return tuple(gpu for gpu in self.devices if not gpu.problem)


def gpus_from_json(fields: Mapping[str, Any]) -> HostGpus:
    """Read what ``dataclasses.asdict`` made of a HostGpus."""
    devices = tuple(GpuFacts(**{**entry, "link": PciLink(**entry["link"])}) for entry in fields["devices"])
    return HostGpus(**{**fields, "devices": devices})
