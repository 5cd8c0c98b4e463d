"""DDL's backend of ``torch.distributed`` against gloo, in one job and in turns: ``ddlrun -np 2 torch_backend.py``.

    ddlrun -np 4 torch_backend.py --only "all_reduce|step"

Each line is one kind of work; the two backends do it alternately, several times, on the same ranks. What counts is the
slowest rank's time; printed is the median over the rounds, and the ratio. DDP, FSDP and DDL's own optimizer (against
DDP on gloo) train a network of some 8 M parameters on a batch so small that communication is most of the step.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import ddl_torch  # makes the backend known

ROUNDS = 7
SIZES = (4, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 32 << 20)  #: bytes
Work = Callable[[], object]


def main() -> None:
    """Measure everything, or what ``--only`` names, and print a table on rank 0."""
    parser = argparse.ArgumentParser(description="DDL's backend of torch.distributed against gloo.")
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression of what to measure")
    only = re.compile(parser.parse_args().only)
    torch.set_num_threads(1)
    ddl_torch.tune_allocator()
    dist.init_process_group("ddl")
    everybody = list(range(dist.get_world_size()))
    groups = {name: dist.new_group(everybody, backend=name) for name in ("ddl", "gloo")}
    if dist.get_rank() == 0:
        print(f"{'':38} {'ddl':>10} {'gloo':>10}   ddl/gloo")
    for name, count, make in kinds():
        if not only.search(name):
            continue
        works = {backend: make(group) for backend, group in groups.items()}
        seconds = in_turns(works, count)
        if dist.get_rank() == 0:
            mine, theirs = (1e6 * seconds[backend] for backend in ("ddl", "gloo"))
            print(f"{name:38} {mine:7.0f} us {theirs:7.0f} us   {mine / theirs:.2f}", flush=True)
    dist.destroy_process_group()


def kinds() -> Iterator[Tuple[str, int, Callable[[Any], Work]]]:
    """Yield the name of each kind, how often it is done in a round, and what makes it for a group."""
    size = dist.get_world_size()
    for nbytes in SIZES:
        count = max(2, min(200, (8 << 20) // nbytes))
        yield f"all_reduce {text(nbytes)}", count, lambda group, n=nbytes // 4: allreduce(group, n)
    for nbytes in SIZES[2:]:
        count = max(2, min(100, (8 << 20) // nbytes))
        rows = nbytes // 4 // size
        yield f"all_gather_into_tensor {text(nbytes)}", count, lambda group, n=rows: gather(group, n)
        yield f"reduce_scatter_tensor {text(nbytes)}", count, lambda group, n=rows: scatter(group, n)
    for nbytes in (4, 16 << 10, 256 << 10, 4 << 20):
        count = max(4, min(200, (8 << 20) // nbytes))
        yield f"send, recv {text(nbytes)}", count, lambda group, n=nbytes // 4: there_and_back(group, n, 0, False)
    yield "send, recv 4 B with a tag", 50, lambda group: there_and_back(group, 1, 7, False)
    yield "send, recv 4 B from any source", 50, lambda group: there_and_back(group, 1, 0, True)
    yield "DistributedDataParallel, a step", 3, ddp
    yield "DistributedOptimizer, a step", 3, own_optimizer
    yield "fully_shard (FSDP2), a step", 3, fsdp


def text(nbytes: int) -> str:
    """Return bytes for people."""
    return f"{nbytes >> 20} MiB" if nbytes >> 20 else f"{nbytes >> 10} KiB" if nbytes >> 10 else f"{nbytes} B"


def allreduce(group: Any, numbers: int) -> Work:
    x = torch.zeros(numbers)
    return lambda: dist.all_reduce(x, group=group)


def gather(group: Any, numbers: int) -> Work:
    mine, whole = torch.zeros(numbers), torch.zeros(numbers * dist.get_world_size())
    return lambda: group.all_gather_single(whole, mine).wait()


def scatter(group: Any, numbers: int) -> Work:
    mine, whole = torch.zeros(numbers), torch.zeros(numbers * dist.get_world_size())
    return lambda: group.reduce_scatter_single(mine, whole).wait()


def there_and_back(group: Any, numbers: int, tag: int, any_source: bool) -> Work:
    """Ranks 0 and 1 send one another a message, in turn; the time is that of two."""
    x, rank = torch.zeros(numbers), dist.get_rank()
    peer = 1 - rank

    def exchange() -> None:
        if rank == 0:
            dist.send(x, peer, group, tag)
        if rank < 2:
            dist.recv(x, None if any_source else peer, group, tag)
        if rank == 1:
            dist.send(x, peer, group, tag)

    return exchange


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


def ddp(group: Any) -> Work:
    return stepping(torch.nn.parallel.DistributedDataParallel(network(), process_group=group))


def own_optimizer(group: Any) -> Work:
    """DDL's optimizer, which has no process group, against what gloo has."""
    return stepping(network(), ddl_torch.DistributedOptimizer) if dist.get_backend(group) == "ddl" else ddp(group)


def fsdp(group: Any) -> Work:
    mesh, model = DeviceMesh.from_group(group, "cpu"), network()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return stepping(fully_shard(model, mesh=mesh))


def in_turns(works: Dict[str, Work], count: int) -> Dict[str, float]:
    """Return the seconds of one call of each, by the slowest rank, in the middle of the rounds."""
    seconds: Dict[str, list[float]] = {name: [] for name in works}
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
    return {name: statistics.median(found) for name, found in seconds.items()}


if __name__ == "__main__":
    main()
