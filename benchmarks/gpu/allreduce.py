"""A rank's program of ``python -m benchmarks gpu``: all-reduces of float32 on one GPU, with others in the same run.

``ddlrun -np 2 python -m benchmarks.gpu.allreduce --device cuda --against gloo,host``. Contestants take turns call by
call, so that a slow moment hits all of them; ranks meet before each call. A call lasts until its result is there (the
GPU has done all that it was given), on the slowest rank. Values are checked before and after. A wrong one ends the
program with status 1.

``ddl``: ``ddl_torch.allreduce_`` in the order of the program, as all others here. ``host``: ``ddl.allreduce_`` on
arrays of the host, from ``ddl.empty``: what the reduction alone takes, which is a stage of ``ddl``. ``c10d``, ``gloo``,
``nccl``: ``torch.distributed``; ``c10d`` is backend "ddl", an asynchronous call and its wait, as in DDP. Streams wait
for its results with DDL_GPU_WAIT=stream. NCCL must believe that each rank is on a host of its own, as it refuses two on
one GPU; then it uses sockets, and its log must say so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

import ddl
import ddl_torch
from benchmarks.gpu.bounds import bounds, rates_of
from ddl.text.columns import aligned
from ddl.text.units import duration, exact_bytes_text
from ddl.tools.files import write_json
from ddl.tools.sizes import parse_sizes

__all__ = ["CONTESTANTS", "main"]

MOST_CALLS, LEAST_CALLS = 200, 3
PIECE = 2 << 20  #: bytes; DDL's pieces of large operations are 1 to 2 MiB
FIGURE_FROM = 16 << 20  #: bytes from which the targets hold
SHARE_TARGET, GLOO_TARGET = 0.8, 2.0
SOCKET_LOG = "NET/Socket"


class Contest:
    """One contestant with its buffer: ``call`` makes the sum, ``fill`` and ``values`` write and read the buffer."""

    def __init__(self, buffer: Any, call: Callable[[], object]) -> None:
        self.call = call
        self._tensor: torch.Tensor = torch.from_numpy(buffer) if isinstance(buffer, np.ndarray) else buffer

    def fill(self, values: np.ndarray) -> None:
        """Write the buffer."""
        self._tensor.copy_(torch.from_numpy(values))

    def clear(self) -> None:
        """Write zeros: sums of them stay zeros."""
        self._tensor.zero_()

    def values(self) -> np.ndarray:
        """Read the buffer."""
        return np.asarray(self._tensor.cpu().numpy())


class AllreduceJob:
    """The rank's part of the job, with the groups of ``torch.distributed`` that contestants need."""

    def __init__(self, device: torch.device, names: List[str]) -> None:
        ddl_torch.init()
        self.device, self.rank, self.size = device, ddl.rank(), ddl.size()
        self.folder = Path(str(ddl.broadcast_object(tempfile.mkdtemp(prefix="ddl-gpu-") if self.rank == 0 else None)))
        self.groups: Dict[str, Any] = {}
        if not {"c10d", "gloo", "nccl"} & set(names):
            return
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = FileStore(str(self.folder / "store"), self.size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size)
        self.groups["gloo"] = dist.group.WORLD
        if "c10d" in names:
            self.groups["c10d"] = dist.new_group(backend="ddl")
        if "nccl" in names:
            os.environ.update(
                NCCL_HOSTID=f"rank{self.rank}",
                NCCL_NET="Socket",
                NCCL_SOCKET_IFNAME="lo",
                NCCL_P2P_DISABLE="1",
                NCCL_SHM_DISABLE="1",
                NCCL_DEBUG="INFO",
                NCCL_DEBUG_FILE=str(self.folder / f"nccl.{self.rank}"),
            )
            self.groups["nccl"] = dist.new_group(backend="nccl")

    def settle(self) -> None:
        """Wait until the GPU has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def nccl_uses_sockets(self) -> bool:
        """Return whether NCCL's own log says so."""
        log = self.folder / f"nccl.{self.rank}"
        return log.is_file() and SOCKET_LOG in log.read_text(errors="replace")


def _of_ddl(job: AllreduceJob, count: int) -> Contest:
    tensor = torch.zeros(count, device=job.device)
    world = ddl.world()
    return Contest(tensor, lambda: ddl_torch.allreduce_(tensor, op=ddl_torch.Sum, communicator=world))


def _of_host(job: AllreduceJob, count: int) -> Contest:
    array = ddl.empty(count, np.float32)
    return Contest(array, lambda: ddl.allreduce_(array, op="sum"))


def _of_group(backend: str) -> Callable[[AllreduceJob, int], Contest]:
    def contest(job: AllreduceJob, count: int) -> Contest:
        tensor = torch.zeros(count, device=job.device)
        return Contest(tensor, lambda: dist.all_reduce(tensor, group=job.groups[backend]))

    return contest


def _of_backend(job: AllreduceJob, count: int) -> Contest:
    tensor = torch.zeros(count, device=job.device)

    def call() -> None:
        work = dist.all_reduce(tensor, group=job.groups["c10d"], async_op=True)
        assert work is not None
        work.wait()

    return Contest(tensor, call)


CONTESTANTS: Dict[str, Callable[[AllreduceJob, int], Contest]] = {
    "ddl": _of_ddl,
    "host": _of_host,
    "c10d": _of_backend,
    "gloo": _of_group("gloo"),
    "nccl": _of_group("nccl"),
}


def check(job: AllreduceJob, name: str, contest: Contest, count: int, salt: int) -> None:
    """Sum a pattern, and compare every element; a wrong one ends the program."""
    numbers = np.resize(np.roll(np.arange(97, dtype=np.float32), -salt), count)  # all sums of them are exact
    contest.fill(numbers + np.float32(job.rank))
    job.settle()
    contest.call()
    job.settle()
    expected = numbers * np.float32(job.size) + np.float32(job.size * (job.size - 1) // 2)
    got = contest.values()
    if not np.array_equal(got, expected):
        index = int(np.flatnonzero(got != expected)[0])
        at = f"element {index} of {count} is {got[index]} instead of {expected[index]}"
        print(f"wrong value: {name} on rank {job.rank}: {at}", file=sys.stderr, flush=True)
        os._exit(1)


def timed(job: AllreduceJob, contest: Contest) -> float:
    """Return the seconds of one call on this rank; all begin together."""
    job.settle()
    ddl.barrier()
    begin = time.perf_counter()
    contest.call()
    job.settle()
    return time.perf_counter() - begin


def measure(job: AllreduceJob, contests: Dict[str, Contest], seconds: float) -> Dict[str, List[float]]:
    """Return the seconds of each call of each contestant, on the slowest rank."""
    for contest in contests.values():
        contest.clear()
    trial = sum(timed(job, contest) for contest in contests.values())
    trial = float(ddl.allreduce(np.array([trial]), op="max")[0])
    calls = int(max(LEAST_CALLS, min(MOST_CALLS, seconds / trial)))
    times: Dict[str, List[float]] = {name: [] for name in contests}
    names = list(contests)
    for number in range(calls):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            times[name].append(timed(job, contests[name]))
    every = ddl.allgather_object(times)
    return {name: [max(calls) for calls in zip(*(of_rank[name] for of_rank in every))] for name in names}


def figures(times: Dict[str, List[float]], nbytes: int, ranks: int, rates: Any) -> Dict[str, Any]:
    """Return what a size comes to: seconds of each contestant, and how DDL does against bounds and gloo."""
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    answer: Dict[str, Any] = {
        name: {"calls": len(seconds), "min": min(seconds), "median": medians[name], "max": max(seconds)}
        for name, seconds in times.items()
    }
    if "ddl" in medians and "gloo" in medians:
        answer["times as fast as gloo"] = medians["gloo"] / medians["ddl"]
    if rates is not None and "ddl" in medians and "host" in medians:
        least = bounds(nbytes, ranks, PIECE, medians["host"], rates)
        answer["bounds"] = {**dataclasses.asdict(least), "slowest": least.slowest}
        answer["share of the bound"] = least.all / medians["ddl"]
    return answer


def row(nbytes: int, names: List[str], figure: Dict[str, Any]) -> List[str]:
    """Return a line of the table."""
    cells = [exact_bytes_text(nbytes), *(duration(figure[name]["median"], 3) for name in names)]
    ratio, share = figure.get("times as fast as gloo"), figure.get("share of the bound")
    cells.append("-" if ratio is None else f"{ratio:.2f} x")
    if share is None:
        return [*cells, "-", "-", "-", "-", "-", "-"]
    least = figure["bounds"]
    stages = [duration(least[stage], 3) for stage in ("down", "reduction", "up", "memory")]
    return [*cells, *stages, duration(least["all"], 3), f"{100 * share:.0f} % ({least['slowest']})"]


def head(names: List[str]) -> List[str]:
    """Return the first line of the table."""
    return ["size", *names, "to gloo", "down", "reduction", "up", "memory", "bound", "share (slowest stage)"]


def missed(sizes: Dict[int, Dict[str, Any]]) -> List[str]:
    """Return which targets were not reached; docs/gpu.md."""
    lines = []
    for nbytes, figure in sizes.items():
        share, ratio = figure.get("share of the bound", 1.0), figure.get("times as fast as gloo", GLOO_TARGET)
        if nbytes >= FIGURE_FROM and share < SHARE_TARGET:
            lines.append(
                f"{exact_bytes_text(nbytes)}: {100 * share:.0f} % of the bound, under {100 * SHARE_TARGET:.0f} %"
            )
        if nbytes >= FIGURE_FROM and ratio < GLOO_TARGET:
            lines.append(f"{exact_bytes_text(nbytes)}: {ratio:.2f} times as fast as gloo, under {GLOO_TARGET:g}")
    return lines


def _arguments(known: Optional[List[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--sizes", type=parse_sizes, default=parse_sizes("8,64K,1M,16M,64M"), metavar="8,64K,1M")
    add("--against", default="gloo,host", help=f"of {','.join(name for name in CONTESTANTS if name != 'ddl')}")
    add("--seconds", type=float, default=3.0, help="for each size, about (%(default)s)")
    add("--rates", metavar="FILE", help="a record with what the probe has found")
    add("--json", metavar="FILE", help="written by rank 0, after each size")
    return parser.parse_args(known)


def _prepare(given: argparse.Namespace) -> Tuple[AllreduceJob, List[str], Any]:
    names = ["ddl", *filter(None, given.against.split(","))]
    device = torch.device(given.device, 0) if given.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rates = rates_of(json.loads(Path(given.rates).read_text())["steps"]) if given.rates else None
    return AllreduceJob(device, names), names, rates


def main() -> int:
    """Measure; return the exit status."""
    given = _arguments()
    job, names, rates = _prepare(given)
    sizes: Dict[int, Dict[str, Any]] = {}
    facts: Dict[str, Any] = {"ranks": job.size, "device": given.device, "torch": torch.__version__}
    for nbytes in sorted(given.sizes):
        count = max(1, nbytes // 4)
        contests = {name: CONTESTANTS[name](job, count) for name in names}
        for name, contest in contests.items():
            check(job, name, contest, count, salt=1)
        times = measure(job, contests, given.seconds)
        for name, contest in contests.items():
            check(job, name, contest, count, salt=2)
        sizes[nbytes] = figures(times, nbytes, job.size, rates)
        if "nccl" in names:
            facts["NCCL uses sockets"] = all(ddl.allgather_object(job.nccl_uses_sockets()))
        if job.rank == 0:
            table = aligned([head(names), *(row(size, names, figure) for size, figure in sizes.items())])
            content = {**facts, "sizes": {str(size): figure for size, figure in sizes.items()}, "table": table}
            if given.json:
                write_json(given.json, {**content, "targets missed": missed(sizes)}, quiet=True)
    if job.rank == 0:
        print("\n".join([*table, *missed(sizes)]), flush=True)
    if facts.get("NCCL uses sockets") is False:
        print("NCCL's log does not say NET/Socket: its times are of something else", file=sys.stderr, flush=True)
        os._exit(1)
    if job.groups:
        dist.destroy_process_group()
    ddl.barrier()
    ddl.shutdown()
    if job.rank == 0:
        shutil.rmtree(job.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
