"""Training with ``deterministic``: weights' bits depend on the number of ranks, not on buckets or who shares memory."""

from __future__ import annotations

import hashlib
import itertools

import pytest
import ranks
from core.jobs import connected
from process_groups import begin

torch = pytest.importorskip("torch")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def network(dtype):
    torch.manual_seed(1)
    layers = [
        torch.nn.Linear(33, 65),
        torch.nn.Tanh(),
        torch.nn.Linear(65, 20),
        torch.nn.Tanh(),
        torch.nn.Linear(20, 3),
    ]
    return torch.nn.Sequential(*layers).to(dtype)


def train(model, optimizer, forward, rank):
    """Take three steps, each rank on data of its own; return a digest of the weights' bits."""
    dtype = next(model.parameters()).dtype
    for step in range(3):
        x = torch.randn(8, 33, generator=torch.Generator().manual_seed(100 * step + rank)).to(dtype)
        optimizer.zero_grad()
        (forward(x) * (1.0 + rank)).pow(2).mean().backward()
        optimizer.step()
    bits = b"".join(p.detach().view(torch.uint8).numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(bits).hexdigest()


def trained():
    """Return digests by ``deterministic``, type and bucket_bytes."""
    import ddl_torch as ddl

    with pytest.raises(ddl.InvalidArgument, match="deterministic=True; on rank 1 deterministic=False"):
        optimizer = torch.optim.SGD(network(torch.float32).parameters(), lr=0.1)
        ddl.DistributedOptimizer(optimizer, deterministic=ddl.rank() == 0)
    results = {}
    for deterministic, dtype in itertools.product((True, False), (torch.float32, torch.bfloat16)):
        for bucket_bytes in (64, 4000, 1 << 20):
            model = network(dtype)
            optimizer = ddl.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                model.named_parameters(),
                bucket_bytes=bucket_bytes,
                deterministic=deterministic,
                check=2,
            )
            results[deterministic, str(dtype), bucket_bytes] = train(model, optimizer, model, ddl.rank())
    return results


@pytest.mark.slow
@pytest.mark.processes
def test_weights_have_the_same_bits_for_any_buckets_and_layout_and_only_if_deterministic():
    seen = {}
    for transport in ("shared", "uneven"):
        for answer in ranks.run(3, trained, **connected(transport, **ONE_THREAD)):
            for (deterministic, dtype, _), digest in answer.items():
                seen.setdefault((deterministic, dtype), set()).add(digest)
    for (deterministic, dtype), digests in seen.items():
        assert (len(digests) == 1) == deterministic, (deterministic, dtype, digests)


def trained_by_torch_distributed(path):
    """Return digests by the size of the buckets of DDP on DDL's backend."""
    dist, rank, _ = begin(path)
    results = {}
    for megabytes in (0.001, 25):
        model = network(torch.float32)
        wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=megabytes)
        results[megabytes] = train(model, torch.optim.SGD(model.parameters(), lr=0.1), wrapped, rank)
    dist.destroy_process_group()
    return results


@pytest.mark.processes
def test_torch_distributed_has_the_same_bits_for_any_buckets(tmp_path):
    job = connected("tcp", DDL_DETERMINISTIC="1", **ONE_THREAD)
    answers = ranks.run(3, trained_by_torch_distributed, str(tmp_path / "store"), initialise=False, **job)
    assert len({digest for answer in answers for digest in answer.values()}) == 1
