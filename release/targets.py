"""For which Pythons and processors there are wheels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Tuple

from ddl.errors import ConfigError

__all__ = ["GLIBC", "MACHINES", "PYTHONS", "WheelTarget", "targets"]

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")  #: as ``uname -m`` says
GLIBC = "2.28"  #: the oldest C library: of RHEL 8 and Debian 10


@dataclass(frozen=True)
class WheelTarget:
    """A Python on a processor, and how packagers call it."""

    python: str
    machine: str

    @property
    def version(self) -> Tuple[int, int]:
        """``(3, 12)``"""
        major, minor = self.python.split(".")
        return int(major), int(minor)

    @property
    def tag(self) -> str:
        """``cp312-cp312-manylinux_2_28_x86_64``"""
        name = "cp" + self.python.replace(".", "")
        return f"{name}-{name}-{self.platform}"

    @property
    def platform(self) -> str:
        """``manylinux_2_28_x86_64``"""
        return f"manylinux_{GLIBC.replace('.', '_')}_{self.machine}"

    @property
    def suffix(self) -> str:
        """How the names of its extension modules end."""
        return f".cpython-{self.python.replace('.', '')}-{self.machine}-linux-gnu.so"

    def __str__(self) -> str:
        return f"Python {self.python}, {self.machine}"


def targets(pythons: str = "", machines: str = "") -> Iterator[WheelTarget]:
    """Yield all targets, or those of comma-separated Pythons and processors; ``ConfigError`` if there is no such."""
    for wanted, known in ((pythons, PYTHONS), (machines, MACHINES)):
        unknown = set(filter(None, wanted.split(","))) - set(known)
        if unknown:
            raise ConfigError(f"there are no wheels for {', '.join(sorted(unknown))}, but for {', '.join(known)}")
    for machine in MACHINES:
        for python in PYTHONS:
            if (not pythons or python in pythons.split(",")) and (not machines or machine in machines.split(",")):
                yield WheelTarget(python, machine)
