"""The verbs of ``ddl_torch`` and of ``torch.distributed`` on the backend "ddl", for all types, with exact numbers."""

from __future__ import annotations

import pytest
import ranks
import torch
from gpu.jobs import device, environment, group, side_stream
from process_groups import drawn, same

import ddl
import ddl_torch

pytestmark = pytest.mark.processes
TYPES = ["float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64"]
SIZES = [1, 1009, 300_007]


def sums_of_all_types() -> None:
    rank, size = ddl.rank(), ddl.size()
    for kind in TYPES:
        for count in SIZES:
            everybody = [drawn(kind, count, of=each) for each in range(size)]
            x = everybody[rank].to(device())
            same(ddl_torch.allreduce(x, op=ddl_torch.Sum).cpu(), sum(everybody))
            same(ddl_torch.allreduce(x, op=ddl_torch.Max).cpu(), torch.stack(everybody).amax(0))
            same(ddl_torch.allreduce(x, op=ddl_torch.Min).cpu(), torch.stack(everybody).amin(0))
            same(x.cpu(), everybody[rank])
            with side_stream():
                y = x.clone()
                work = ddl_torch.allreduce_async_(y, op=ddl_torch.Sum)
                same(ddl_torch.synchronize(work).cpu(), sum(everybody))


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [2, 4])
def test_sums_of_all_types(size: int) -> None:
    ranks.run(size, sums_of_all_types, env=environment())


def other_verbs() -> None:
    rank, size = ddl.rank(), ddl.size()
    for kind in ("float32", "bfloat16", "int64"):
        rows = [drawn(kind, each + 1, 5, of=each) for each in range(size)]
        own = rows[rank].to(device())
        same(ddl_torch.allgather(own).cpu(), torch.cat(rows))
        same(ddl_torch.broadcast(rows[rank][:1].to(device()), 1).cpu(), rows[1][:1])
        whole = [drawn(kind, 2 * size, 3, of=each) for each in range(size)]
        part = ddl_torch.reducescatter(whole[rank].to(device()), op=ddl_torch.Sum)
        same(part.cpu(), sum(whole)[2 * rank : 2 * rank + 2])
        swapped = ddl_torch.alltoall(whole[rank].to(device()))
        same(swapped.cpu(), torch.cat([each[2 * rank : 2 * rank + 2] for each in whole]))
        several = ddl_torch.grouped_allreduce([own[:1], whole[rank].to(device())], op=ddl_torch.Sum)
        same([tensor.cpu() for tensor in several], [sum(each[:1] for each in rows), sum(whole)])
    average = ddl_torch.allreduce(torch.full((7,), float(rank), device=device()))
    same(average.cpu(), torch.full((7,), (size - 1) / 2))


@pytest.mark.parametrize("size", [2, 4])
def test_other_verbs(size: int) -> None:
    ranks.run(size, other_verbs, env=environment())


def verbs_of_the_backend() -> None:
    dist, rank, size = group()
    everybody = [drawn("float32", 4 * size, of=each) for each in range(size)]
    x = everybody[rank].to(device())
    total = x.clone()
    dist.all_reduce(total)
    same(total.cpu(), sum(everybody))
    gathered = torch.zeros(4 * size * size, device=device())
    dist.all_gather_into_tensor(gathered, x)
    same(gathered.cpu(), torch.cat(everybody))
    part = torch.zeros(4, device=device())
    dist.reduce_scatter_tensor(part, x)
    same(part.cpu(), sum(everybody)[4 * rank : 4 * rank + 4])
    swapped = torch.zeros_like(x)
    dist.all_to_all_single(swapped, x)
    same(swapped.cpu(), torch.cat([each[4 * rank : 4 * rank + 4] for each in everybody]))
    copy = x.clone()
    dist.broadcast(copy, 1)
    same(copy.cpu(), everybody[1])
    received = torch.zeros_like(x)
    sending = dist.isend(x, (rank + 1) % size)
    dist.recv(received, (rank - 1) % size)
    sending.wait()
    same(received.cpu(), everybody[rank - 1])
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 4])
def test_verbs_of_the_backend(size: int) -> None:
    ranks.run(size, verbs_of_the_backend, env=environment())
