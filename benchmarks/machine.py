"""The machine on which a benchmark ran: processor, kernel, versions, load."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import sys
import time
from typing import Any, Dict, Iterator, List

from ddl._version import __version__
from ddl.tuning.measure.other_work import MOST, busy_seconds

__all__ = ["Processors", "command", "describe", "facts", "processor", "say_if_busy"]

_LOOK = 0.5  #: seconds for which ``say_if_busy`` watches the machine


def command() -> List[str]:
    """Return the command line, without the path of this program."""
    return ["python", "-m", "benchmarks", *sys.argv[1:]]


def processor() -> Dict[str, str]:
    """Return model and features of the processor, as far as Linux tells."""
    facts: Dict[str, str] = {}
    wanted = {"model name": "model", "flags": "flags", "Features": "flags", "CPU part": "model"}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in wanted:
                    facts.setdefault(wanted[name.strip()], value.strip())
    except OSError:
        facts["model"] = platform.processor()
    return facts


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def facts() -> Dict[str, Any]:
    """Return the machine's facts for JSON."""
    return {
        "date": datetime.date.today().isoformat(),
        "platform": platform.platform(),
        "kernel": platform.release(),
        "cpu": processor().get("model", "unknown"),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "virtual": " hypervisor " in f" {processor().get('flags', '')} ",
        "tcp_congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "load_before": os.getloadavg()[0],
        "python": sys.version.split()[0],
        "ddl": __version__,
    }


def describe(machine: Dict[str, Any]) -> str:
    """Return one line about the machine for people."""
    kind = "virtual machine" if machine["virtual"] else "machine"
    return f"{machine['cpu']}, {machine['cores_allowed']} cores ({kind}), Linux {machine['kernel']}, {machine['date']}"


def say_if_busy() -> None:
    """Say on stderr if other programs use this machine now: figures that are taken beside them are about them, too."""
    began, busy = time.monotonic(), busy_seconds()
    time.sleep(_LOOK)
    used = (busy_seconds() - busy) / (time.monotonic() - began)
    if used > MOST:
        text = f"other programs use {used:.1f} of this machine's {os.cpu_count()} cores"
        print(f"note: {text}; what is measured now is about them, too", file=sys.stderr)


class Processors:
    """What the machine's processors did while something was watched, as /proc/stat has it."""

    def __init__(self) -> None:
        self._spent = [0] * 8  # user, nice, system, idle, iowait, irq, softirq, steal, in ticks of all cores

    @contextlib.contextmanager
    def watched(self, wanted: bool = True) -> Iterator[None]:
        """Add what they do during the block, if that is ``wanted``."""
        before = self._ticks()
        yield
        if wanted:
            self._spent = [sum_ + end - begin for sum_, end, begin in zip(self._spent, self._ticks(), before)]

    @staticmethod
    def _ticks() -> List[int]:
        return [int(word) for word in _read("/proc/stat").splitlines()[0].split()[1:9]]

    def shares(self) -> Dict[str, float]:
        """Return which share of their time they idled, and which this machine's own host gave to others."""
        *_, idle, waiting, _, _, stolen = self._spent
        whole = max(1, sum(self._spent))
        return {"idle": (idle + waiting) / whole, "stolen": stolen / whole}
