"""All-reduces of tensors by NCCL within a host and by DDL between hosts (DDL_NCCL=1), on a fake NCCL."""

from __future__ import annotations

import os
import signal
from typing import Callable, Dict, List

import pytest
import ranks
import torch
from device.fake_nccl import environment as with_nccl
from device.fake_nccl import library
from torch_gpu import environment, fake_gpu, on_gpu

import ddl
import ddl_torch

pytestmark = [pytest.mark.processes, pytest.mark.slow]  # the fake device of torch is compiled first


@pytest.fixture(scope="module", autouse=True)
def compiled_nccl() -> None:
    """Compile it outside of the tests, which are to be quick."""
    library()


def servers(per_host: int, *, shared_gpu: bool = False) -> Callable[[int], Dict[str, str]]:
    """Return ``env_of`` of ranks on hosts with ``per_host`` GPUs each."""

    def env_of(rank: int) -> Dict[str, str]:
        host, index = divmod(rank, per_host)
        gpu = 0 if shared_gpu else index
        fake = environment(physical=[gpu])
        return {**fake, **with_nccl(host=f"h{host}"), "DDL_HOST_ID": f"h{host}", "DDL_NCCL": "1"}

    return env_of


def calls() -> int:
    """Return how often this rank has called NCCL's reduce-scatter."""
    from device.fake_nccl import Nccl

    return Nccl().calls("ncclReduceScatter") if os.path.exists(os.environ["DDL_NCCL_LIBRARY"]) else 0


def sums() -> int:
    with fake_gpu():
        rank, size = ddl.rank(), ddl.size()
        total = size * (size + 1) / 2
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8):
            for count in (400_000, 300_007, 524_288):
                x = on_gpu(count, value=rank + 1, dtype=dtype)
                assert (ddl_torch.allreduce(x, op=ddl.Sum).cpu() == total).all(), (dtype, count)
        x = torch.arange(300_000.0).to("fake") + rank
        assert torch.allclose(ddl_torch.allreduce(x).cpu(), torch.arange(300_000.0) + (size - 1) / 2)
        assert (ddl_torch.allreduce_(x.clone(), op=ddl.Max).cpu() == torch.arange(300_000.0) + size - 1).all()
        before = calls()
        small = ddl_torch.allreduce(on_gpu(100, value=rank), op=ddl.Sum)  # as usual
        flags = ddl_torch.allreduce(on_gpu(400_000, value=1, dtype=torch.bool), op=ddl.Min)
        average = ddl_torch.allreduce(on_gpu(400_000, value=rank, dtype=torch.int32))
        assert small[0].item() == total - size and flags.cpu().all() and average[0].item() == (total - size) // size
        assert calls() == before
        works = [ddl_torch.allreduce_async(on_gpu(200_000, value=number), op=ddl.Sum) for number in range(5)]
        for number, work in enumerate(works):
            assert (work.wait().cpu() == number * size).all()
        return calls()


@pytest.mark.parametrize(("size", "per_host"), [(2, 2), (4, 2)], ids=["one host", "two hosts"])
def test_sums(size: int, per_host: int) -> None:
    assert min(ranks.run(size, sums, env_of=servers(per_host))) > 20


def trained() -> None:
    from torch_training import linear

    with fake_gpu():
        weights = []
        for device in ("cpu", "fake"):
            model = linear(300, 400, 10, dtype=torch.float32).to(device)
            plain = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = ddl_torch.DistributedOptimizer(plain, model.named_parameters(), overlap=True)
            for step in range(3):
                generator = torch.Generator().manual_seed(10 * step + ddl.rank())
                optimizer.zero_grad()
                model(torch.randn(4, 300, generator=generator).to(device)).square().mean().backward()
                optimizer.step()
            weights.append([p.detach().cpu() for p in model.parameters()])
        for left, right in zip(*weights):
            torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
            everybody = ddl_torch.allgather(left.reshape(1, -1))
            assert (everybody == everybody[0]).all()
        assert calls() > 0


def test_training() -> None:
    ranks.run(4, trained, env_of=servers(2))


def not_used() -> int:
    with fake_gpu():
        total = ddl_torch.allreduce(on_gpu(400_000, value=ddl.rank() + 1.0), op=ddl.Sum)
        assert (total.cpu() == ddl.size() * (ddl.size() + 1) / 2).all()
        return calls()


@pytest.mark.parametrize("why", ["one GPU for two ranks", "alone on each host", "deterministic", "no library", "off"])
def test_where_it_cannot_be_used_ddl_adds_up(why: str) -> None:
    of_servers = servers(1 if why == "alone on each host" else 2, shared_gpu=why == "one GPU for two ranks")
    more = {
        "deterministic": {"DDL_DETERMINISTIC": "1"},
        "no library": {"DDL_NCCL_LIBRARY": "libnccl-that-is-nowhere.so"},
        "off": {"DDL_NCCL": "0"},
    }.get(why, {})

    def env_of(rank: int) -> Dict[str, str]:
        return {**of_servers(rank), **more}

    assert ranks.run(2, not_used, env_of=env_of) == [0, 0]


def loses_a_rank() -> str:
    with fake_gpu():
        for _ in range(2):
            ddl_torch.allreduce_(on_gpu(400_000), op=ddl.Sum)
        ranks.meet()
        if ddl.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        texts: List[str] = []
        x = on_gpu(400_000)
        for _ in range(2):
            with pytest.raises(ddl.Error) as caught:
                ddl_torch.allreduce_(x, op=ddl.Sum)
            assert not isinstance(caught.value, ddl.CollectiveTimeout)  # it does not wait for the deadline
            texts.append(str(caught.value))
        torch.fake.current_stream().synchronize()  # no stream waits for ever
    return texts[0]


@pytest.mark.faults
def test_a_lost_rank_ends_what_nccl_waits_for() -> None:
    answers = ranks.run(4, loses_a_rank, env_of=servers(2), may_die=[1])
    assert all("rank 1" in answer for rank, answer in enumerate(answers) if rank != 1), answers


def different() -> str:
    with fake_gpu():
        ddl_torch.allreduce_(on_gpu(400_000), op=ddl.Sum)
        with pytest.raises(ddl.Error) as caught:
            ddl_torch.allreduce_(on_gpu(800_000 if ddl.rank() else 600_000), op=ddl.Sum)
        torch.fake.current_stream().synchronize()
        return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.faults
def test_calls_that_differ_do_not_reach_nccl() -> None:
    for answer in ranks.run(2, different, env_of=servers(2)):
        assert "CollectiveMismatch" in answer and "600000" in answer and "800000" in answer, answer


def refused() -> str:
    from device.fake_nccl import Nccl

    with fake_gpu():
        x = on_gpu(400_000)
        ddl_torch.allreduce_(x, op=ddl.Sum)
        if ddl.rank() == 1:
            Nccl().refuse("ncclReduceScatter", 1)
        with pytest.raises(ddl.Error) as caught:
            for _ in range(3):
                ddl_torch.allreduce_(x, op=ddl.Sum)
        torch.fake.current_stream().synchronize()
        return str(caught.value)


@pytest.mark.faults
def test_an_error_of_nccl_reaches_all_ranks() -> None:
    answers = ranks.run(2, refused, env_of=servers(2))
    assert all("NCCL" in answer or "nccl" in answer for answer in answers), answers
