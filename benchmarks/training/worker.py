"""A contestant on every rank: checks the weights, times steps, then looks at the memory.

Steps are timed in blocks of a second or so. Around each the ranks wait for one another, measure how far apart their
cores are, and look how busy other programs kept the machine, so that blocks that a disturbance hit can be left out.

Started by start.py under ddlrun, whatever the contestant, so that all are started alike; torch's FileStore is how
ranks wait for one another outside of what is timed. Each rank connects to start.py, which says when to train.
Ranks whose weights differ after the first steps end the program with status 1.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import resource
import socket
import sys
import time
from pathlib import Path
from typing import IO, Any, Callable, Dict, List, Tuple

import numpy
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store

from benchmarks.distance import Distance
from benchmarks.training.models import MODELS, Batch, loss_of

__all__ = ["CHECKED_STEPS", "WARM_UP_STEPS", "main"]

CHECKED_STEPS = 3  # after so many, weights are compared
WARM_UP_STEPS = 5  # in all, with the checked ones; DDP lays its buckets out anew after the first
MEMORY_STEPS = 2
SEED = 1
BATCHES = 4  # different ones that a rank uses in turn

Network = torch.nn.Module
Wrapped = Tuple[Network, torch.optim.Optimizer, Callable[[], None]]


def alone(network: Network, optimizer: torch.optim.Optimizer, store: Store) -> Wrapped:
    """No communication: what a step costs if averaging were free."""
    return network, optimizer, lambda: None


def synced(network: Network, optimizer: torch.optim.Optimizer, store: Store) -> Wrapped:
    """As ``alone``, but all ranks meet in every step: what it costs to wait for the slowest."""
    import ddl

    ddl.init()
    optimizer.register_step_pre_hook(lambda *_: ddl.barrier())
    return network, optimizer, ddl.shutdown


def ddl(network: Network, optimizer: torch.optim.Optimizer, store: Store) -> Wrapped:
    """``ddl_torch`` as the examples use it."""
    import ddl_torch

    ddl_torch.init()
    ddl_torch.broadcast_parameters(network.state_dict())
    return network, ddl_torch.DistributedOptimizer(optimizer, network.named_parameters()), ddl_torch.shutdown


def ddp(network: Network, optimizer: torch.optim.Optimizer, store: Store) -> Wrapped:
    """DistributedDataParallel over gloo with its defaults."""
    return _ddp(network, optimizer, store, view=False)


def ddp_view(network: Network, optimizer: torch.optim.Optimizer, store: Store) -> Wrapped:
    """As ``ddp``, with gradients that are views of its buckets."""
    return _ddp(network, optimizer, store, view=True)


def ddp_over_ddl(network: Network, optimizer: torch.optim.Optimizer, store: Store) -> Wrapped:
    """As ``ddp``, over the backend "ddl" of ``torch.distributed``."""
    importlib.import_module("ddl_torch")  # it registers the backend
    return _ddp(network, optimizer, store, view=False, backend="ddl")


def _ddp(
    network: Network, optimizer: torch.optim.Optimizer, store: Store, view: bool, backend: str = "gloo"
) -> Wrapped:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend, store=store, rank=rank(), world_size=size())
    wrapped = torch.nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=view)
    return wrapped, optimizer, dist.destroy_process_group


LIBRARIES = {
    "alone": alone,
    "synced": synced,
    "ddl": ddl,
    "ddp": ddp,
    "ddp_view": ddp_view,
    "ddp_over_ddl": ddp_over_ddl,
}


def rank() -> int:
    return int(os.environ["DDL_RANK"])


def size() -> int:
    return int(os.environ["DDL_SIZE"])


def gather(store: Store, name: str, value: str) -> List[str]:
    """Return what every rank passed, once all have."""
    store.set(f"{name}.{rank()}", value)
    return [store.get(f"{name}.{other}").decode() for other in range(size())]


def digest(network: Network) -> str:
    """Return a hash of every bit of the parameters. Buffers may differ: each rank has its own batch statistics."""
    total = hashlib.sha256()
    for parameter in network.parameters():
        total.update(parameter.detach().cpu().numpy().tobytes())
    return total.hexdigest()


def memory() -> Dict[str, int]:
    """Return this rank's bytes: ``rss``, and ``own``, which counts a page shared by n processes as 1/n of a page.

    ``own`` leaves out mapped files (libraries): how many other processes map them is none of the contestant's doing.
    """
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, amount = line.split(":")
        fields[name] = int(amount.split()[0]) << 10
    return {"rss": fields["Rss"], "own": fields["Pss_Anon"] + fields["Pss_Shmem"]}


class Trainer:
    """The loop that every contestant runs. On a GPU, a step has ended when the GPU has done all that it was given."""

    def __init__(self, network: Network, optimizer: torch.optim.Optimizer, batches: List[Batch]) -> None:
        self.network, self.optimizer, self.batches = network, optimizer, batches
        self.on_gpu = batches[0][0].is_cuda
        self.done = 0

    def step(self, look: Callable[[], None] = lambda: None) -> None:
        """Train on one batch; ``look`` is called where a step holds the most: after forward, backward and update."""
        self.optimizer.zero_grad()
        loss = loss_of(self.network, self.batches[self.done % len(self.batches)])
        look()
        torch.autograd.backward(loss)
        look()
        self.optimizer.step()
        if self.on_gpu:
            torch.cuda.synchronize()
        look()
        self.done += 1

    def timed(self, steps: int) -> List[float]:
        """Return the seconds of each of so many steps."""
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - start)
        return seconds

    def memory(self) -> Dict[str, int]:
        """Return bytes: ``own`` after a step, ``own_peak`` the most within one, ``rss``, ``rss_peak`` since start."""
        seen: List[Dict[str, int]] = []
        for _ in range(MEMORY_STEPS):
            self.step(lambda: seen.append(memory()))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        return {**seen[-1], "own_peak": max(sample["own"] for sample in seen), "rss_peak": peak}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def waiting(optimizer: Any) -> Any:
    """Return the seconds that a distributed optimizer of DDL has waited for results, None for another optimizer."""
    return optimizer.statistics()["seconds_waiting"] if hasattr(optimizer, "statistics") else None


def busy_seconds() -> float:
    """Return the CPU time of all processes of the machine since it started, and what its host took away (steal)."""
    user, nice, system, *_, steal = (int(field) for field in Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")


def check(store: Store, network: Network, library: str) -> None:
    """End the program with status 1 unless the weights of all ranks are the same to the bit."""
    digests = gather(store, "digest", digest(network))
    for other, theirs in enumerate(digests):
        if theirs != digests[0]:
            print(f"{library}: after {CHECKED_STEPS} steps rank {other} has other weights than rank 0", file=sys.stderr)
            sys.exit(1)


def block(trainer: Trainer, store: Store, distance: Distance, name: str, steps: int) -> Dict[str, Any]:
    """Return the seconds of each of so many steps, and what this rank and the machine did meanwhile."""
    trainer.step()  # other contestants have filled the caches meanwhile
    gather(store, f"{name}.start", "")
    probes = [distance.round_trip()]  # the ranks leave it together
    started, before, busy = time.perf_counter(), cpu_seconds(), busy_seconds()
    waited = waiting(trainer.optimizer)
    result: Dict[str, Any] = {"seconds": trainer.timed(steps)}
    result["cpu_seconds"] = (cpu_seconds() - before) / steps
    if waited is not None:
        result["waiting_seconds"] = (waiting(trainer.optimizer) - waited) / steps
    gather(store, f"{name}.end", "")
    result["whole"] = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": cpu_seconds() - before,
        "busy_seconds": busy_seconds() - busy,
    }
    return {**result, "probes": [*probes, distance.round_trip()]}


def place(device: str) -> torch.device:
    """Return the device on which this rank trains: its own GPU, where there is one for each rank of the host."""
    if device == "cpu":
        return torch.device("cpu")
    own = torch.device(device, int(os.environ["DDL_LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(own)
    torch.backends.cudnn.deterministic = True  # weights are compared, and contestants are treated alike
    return own


def train(given: argparse.Namespace, distance: Distance) -> None:
    """Train when the driver says so; tell it what this rank measured."""
    library, directory = given.library, given.directory
    model = MODELS[given.model]
    steps = given.steps or model.steps
    store = FileStore(str(directory / "store"), size())
    device = place(given.device)
    network = model.make(SEED).to(device)
    batches = [(x.to(device), y.to(device)) for x, y in model.batches(SEED + 1 + rank(), BATCHES)]
    plain = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    wrapped, optimizer, finish = LIBRARIES[library](network, plain, store)
    trainer = Trainer(wrapped, optimizer, batches)
    for _ in range(CHECKED_STEPS):
        trainer.step()
    if library not in ("alone", "synced"):
        check(store, network, library)
    if given.save and rank() == 0:
        weights: Dict[str, Any] = {
            name: parameter.detach().cpu().numpy() for name, parameter in network.named_parameters()
        }
        numpy.savez(directory / "weights", **weights)
    for _ in range(WARM_UP_STEPS - CHECKED_STEPS):
        trainer.step()
    with socket.socket(socket.AF_UNIX) as driver:
        driver.connect(str(directory / "control"))
        lines = driver.makefile("rw", encoding="utf-8")
    tell(lines, {"rank": rank(), "batch": model.batch, "samples": model.samples})
    for number, word in enumerate(lines):
        if word != "block\n":
            break
        tell(lines, block(trainer, store, distance, f"block.{number}", steps))
    tell(lines, {"memory": trainer.memory()})
    gather(store, "done", "")
    finish()


def tell(lines: IO[str], what: Dict[str, Any]) -> None:
    lines.write(json.dumps(what) + "\n")
    lines.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("library", choices=sorted(LIBRARIES))
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--steps", type=int, help="default: those of the model")
    parser.add_argument("--directory", type=Path, required=True, help="empty; for the store and the results")
    parser.add_argument("--probe-library", default="", help="native/probe.cc, compiled; without it no distances")
    parser.add_argument("--save", action="store_true", help=f"write rank 0's weights after {CHECKED_STEPS} steps there")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    distance = Distance(given.probe_library, str(given.directory / "probe"), rank())
    train(given, distance)


if __name__ == "__main__":
    main()
