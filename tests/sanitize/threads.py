"""Builds and runs ranks_as_threads.cc with the plans that the planners make for a few layouts.

ThreadSanitizer follows one process. Ranks that are processes are each watched alone, so nothing of what orders one
rank's writes before another's reads is checked there; here all ranks are threads of one process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, List, Optional, Tuple
from unittest import mock

from builds import HERE, ROOT, Build


@dataclass(frozen=True)
class Case:
    """``ranks`` threads, ``per_host`` of which share memory each; the rest are connected by TCP."""

    ranks: int
    per_host: int
    operations: int
    algorithm: str = ""  # DDL_ALGORITHM; empty: the table's choice
    connections: int = 1  # of each stream of large operations

    @property
    def name(self) -> str:
        return f"{self.ranks}-by-{self.per_host}-{self.algorithm or 'table'}-{self.connections}"


CASES = (
    Case(2, 2, 6000),
    Case(3, 3, 3000),
    Case(4, 4, 3000),
    Case(3, 3, 2000, "direct"),  # every size by two meets
    Case(2, 2, 3000, "ring"),  # all through byte rings
    Case(4, 4, 2000, "recursive_doubling"),
    Case(2, 1, 2000),  # all through sockets
    Case(3, 1, 1500, connections=2),
    Case(4, 2, 1500),  # both
)
SEED = 1
LIMIT_S = 170
#: What needs Python, what in_process_memory.cc stands for, and kernels: the generic ones build faster.
_LEFT_OUT = ("csrc/python/", "csrc/mpi/", "csrc/memory/peer_memory.cc", "_x86.cc")


#: What a step has, in the order in which plans_file.h reads it.
_OF_A_STEP = (
    *("kind", "src", "dst", "final", "onto", "after_sends", "phase"),
    *("peers", "src_blocks", "dst_blocks", "remotes", "pull"),
)


def sources() -> List[Path]:
    sources = sorted((ROOT / "csrc").rglob("*.cc"))
    core = [path for path in sources if not any(part in str(path.relative_to(ROOT)) for part in _LEFT_OUT)]
    return [HERE / "ranks_as_threads.cc", HERE / "in_process_memory.cc", *core]


def _program(build: Build) -> Path:
    target = build.folder / "ranks_as_threads"
    headers = [*(ROOT / "csrc").rglob("*.h"), *HERE.glob("*.h")]
    build.compile(target, sources(), headers, f"-I{ROOT / 'csrc'}", f"-I{HERE}")
    return target


def _numbers(value: Any) -> Iterator[int]:
    """Flatten what lower() hands to the core: a list becomes its length and its elements; a tuple only its elements."""
    if isinstance(value, list):
        yield len(value)
    if isinstance(value, (list, tuple)):
        for element in value:
            yield from _numbers(element)
    else:
        yield int(value)


def plans(size: int, per_host: int, algorithm: str) -> str:
    """Return all plans of a job of ``size`` ranks, ``per_host`` of which share memory, as plans_file.h reads them."""
    from ddl import _core
    from ddl.plan import build, layout
    from ddl.plan.ir import Collective
    from ddl.plan.lower import lower, one_message
    from ddl.topology import Dimension, Topology
    from ddl.tuning.select import select

    topology = Topology.flat(size, shared=per_host > 1)
    if 1 < per_host < size:
        inner, outer = Dimension("ranks per host", per_host, shared=True), Dimension("hosts", size // per_host)
        topology = Topology((inner, outer), tuple(range(size)))
    lines: List[Tuple[Any, ...]] = []

    def add(rank: int, collective: Collective, root: int, choice: Tuple[int, int, int, int], plan: Any) -> None:
        touched = (tuple(plan.get(how, [False] * 3)) for how in ("only_copied", "only_written"))
        fixed = (tuple(plan["own_tables"]), tuple(plan["exposed"]), *touched)
        lines.append(
            (rank, int(collective), root, *choice, plan["split"], plan["parts"], plan["tables"])
            + (*fixed, plan["channels"])
        )

    # The core's types, as the numbers in them.
    def step(**fields: Any) -> Tuple[Any, ...]:
        assert set(fields) <= set(_OF_A_STEP), f"plans_file.h does not read all of {list(fields)}"
        return tuple({"pull": False, **fields}[name] for name in _OF_A_STEP)

    instead = {"Plan": lambda **fields: fields, "Step": step, "Remote": lambda *f: f}
    with mock.patch.multiple(_core, **instead):
        for rank in range(size):
            for collective in Collective:
                if collective in (Collective.SEND, Collective.RECV):
                    for peer in set(range(size)) - {rank}:
                        plan = one_message(collective, rank, size, [peer])
                        add(rank, collective, peer, (2**63, _core.LANE_POINT_TO_POINT, 0, 1), plan)
                    continue
                for root in range(size if collective in layout.ROOTED else 1):
                    for line in select(collective, topology, algorithm):
                        lane = _core.LANE_SMALL if line.small else _core.LANE_LARGE
                        plan = lower(build(collective, line.algorithm, topology, rank, root), topology)
                        # Small pieces, so that operations have several.
                        choice = (line.max_bytes, lane, min(line.piece_bytes, 65536), line.in_flight)
                        add(rank, collective, root, choice, plan)
    return "\n".join(" ".join(map(str, _numbers(part))) for part in [(size, len(lines)), *lines])


def run_ranks_as_threads(build: Build) -> Optional[str]:
    """Return what went wrong, if anything did; reports lie where all reports lie."""
    program = _program(build)
    for case in CASES:
        path = build.folder / f"plans-{case.name}"
        what = f"{case.ranks}, {case.per_host}, {case.algorithm!r}"
        code = f"import threads; open({str(path)!r}, 'w').write(threads.plans({what}))"
        env = build.environment()
        env["PYTHONPATH"] += os.pathsep + str(HERE)
        subprocess.run(build.program(sys.executable, "-c", code), cwd=build.folder, env=env, check=True)
        numbers = (case.operations, SEED, case.per_host, case.connections)
        line = build.program(str(program), str(path), *map(str, numbers))
        ended = subprocess.run(line, cwd=build.folder, env=build.environment(), check=False, timeout=LIMIT_S)
        if ended.returncode != 0:
            return f"ranks as threads ({case.name}) ended with status {ended.returncode}"
    return None
