"""Which cores a process may use, and how many of them are its own share among the ranks of its machine.

The ranks of a machine say where they may run: by their affinity, as ``0-7,16``, and by the time that their control
groups allow. From this, each rank's share follows, alike on all of them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

from ddl.machine import boot_id

__all__ = ["Cores", "helpers", "quota", "shares"]

#: More threads than that were not seen to bring more (docs/performance.md).
_MOST_HELPERS = 3
_ROUNDING = 1e-6  # seven sevenths are less than 1 otherwise
_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", re.ASCII)


@dataclass(frozen=True)
class Cores:
    """Where a process may run: ``machine`` is the same for processes of one kernel, ``cpus`` as the kernel lists them.

    ``quota``: how many cores' time its control groups allow; 0: no limit.
    """

    machine: str
    cpus: str
    quota: float

    @classmethod
    def of_this_process(cls) -> Cores:
        """Ask the kernel."""
        return cls(boot_id(), _listed(sorted(os.sched_getaffinity(0))), quota())

    def __post_init__(self) -> None:
        # Another process may have sent it.
        if not (isinstance(self.machine, str) and isinstance(self.quota, (int, float)) and self.quota >= 0):
            raise ValueError("this does not say where a process may run")
        if not (isinstance(self.cpus, str) and _LIST.fullmatch(self.cpus) and self._ascends()):
            raise ValueError(f"{str(self.cpus)[:100]!r} is no list of cores")

    def _ascends(self) -> bool:
        """Return whether each core is named once, so that there are no more of them than numbers of five digits."""
        ends = [-1, *(end + of_last for span in _spans(self.cpus) for of_last, end in enumerate(span))]
        return all(earlier < later for earlier, later in zip(ends, ends[1:]))


def _spans(cpus: str) -> List[Tuple[int, int]]:
    spans = [[int(end) for end in span.split("-")] for span in cpus.split(",")]
    return [(span[0], span[-1]) for span in spans]


def _numbers(cpus: str) -> List[int]:
    """Return the numbers of the cores."""
    return [number for first, last in _spans(cpus) for number in range(first, last + 1)]


def shares(ranks: Mapping[int, Cores]) -> Dict[int, float]:
    """Return how many cores are there for each rank, if it shares each of its own with all ranks that may use it.

    ``ranks``: all ranks of the job, on any machines.
    """
    machines: Dict[str, Counter[str]] = {}
    for own in ranks.values():
        machines.setdefault(own.machine, Counter())[own.cpus] += 1
    result: Dict[Cores, float] = {}  # mostly all ranks of a machine have the same
    for own in dict.fromkeys(ranks.values()):
        users: Counter[int] = Counter()
        for cpus, count in machines[own.machine].items():
            users.update(dict.fromkeys(_numbers(cpus), count))
        cores = sum(1 / users[number] for number in _numbers(own.cpus)) + _ROUNDING
        here = sum(machines[own.machine].values())
        result[own] = min(cores, own.quota / here) if own.quota else cores
    return {rank: result[own] for rank, own in ranks.items()}


def helpers(cores: float, wanted: int = 0) -> int:
    """Return how many threads may help a rank that has so many ``cores``; ``wanted``: DDL_CORES, 0 for automatic.

    One core is for the thread that asks for help.
    """
    if wanted:
        return wanted - 1
    return max(0, min(int(cores) - 1, _MOST_HELPERS))


def _listed(numbers: Sequence[int]) -> str:
    spans: List[List[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def quota(root: str = "/") -> float:
    """Return how many cores' time this process's cgroups allow, 0 for no limit; ``root`` is for tests."""
    limits = []
    for line in _text(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounted = os.path.join(root, "sys/fs/cgroup", controllers)
        group = path.strip("/")
        while True:  # the limit of a group is one of all groups below
            limits.append(_quota_of(os.path.join(mounted, group), new=not controllers))
            if not group:
                break
            group = os.path.dirname(group)
    return min((limit for limit in limits if limit > 0), default=0.0)


def _quota_of(group: str, *, new: bool) -> float:
    if new:
        fields = _text(os.path.join(group, "cpu.max")).split()
    else:
        fields = [_text(os.path.join(group, f"cpu.cfs_{what}_us")).strip() for what in ("quota", "period")]
    try:
        return float(fields[0]) / float(fields[1])
    except (ValueError, IndexError, ZeroDivisionError):  # "max", or there is no such file
        return 0.0


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
