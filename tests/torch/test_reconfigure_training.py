"""DDP goes on after a rank has died: with the right averages, on all that are left, with and without DDL's hook."""

from __future__ import annotations

import os
import signal

import pytest
import ranks
from reconfiguring import SIZE, Member, skip_below

torch = pytest.importorskip("torch")
pytestmark = [skip_below(), pytest.mark.faults]
STEPS, FAILS = 8, 3  # the step in which a rank dies is done once more by those that are left


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2)).double()


def loss(model, rank, step):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + rank)).double()
    return model(x).square().mean()


def weights(model):
    return torch.cat([p.detach().ravel() for p in model.parameters()])


def reference(victim):
    """Return what one process computes that averages over the ranks of each step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    for step in range(STEPS):
        members = [rank for rank in range(SIZE) if step < FAILS or rank != victim]
        optimizer.zero_grad()
        (sum(loss(model, rank, step) for rank in members) / len(members)).backward()
        optimizer.step()
    return weights(model)


def training(path, victim, hooked, bucket):
    import ddl_torch

    member = Member(path)
    handles, rank = member.handles(), member.first_rank
    member.go_to(0, handles)
    model = torch.nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=bucket)
    if hooked:
        model.register_comm_hook(None, ddl_torch.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step == FAILS:
            ranks.meet()
            if rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            with pytest.raises(RuntimeError, match="PeerLost|lost rank|is gone"):
                loss(model, rank, step).backward()
            member.go_to(1, [handles[other] for other in range(SIZE) if other != victim])
            model._update_process_group(member.group)
            optimizer.zero_grad()
        loss(model, rank, step).backward()
        optimizer.step()
    result = weights(model)
    everywhere = [torch.empty_like(result) for _ in range(SIZE - 1)]
    member.dist.all_gather(everywhere, result)
    assert torch.equal(*everywhere)
    torch.testing.assert_close(result, reference(victim), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_ddp_goes_on(victim, tmp_path) -> None:
    ranks.run(3, training, str(tmp_path / "store"), victim, False, 25, initialise=False, may_die=[victim])


@pytest.mark.parametrize("hooked", [False, True])
def test_ddp_goes_on_with_many_buckets(hooked, tmp_path) -> None:
    ranks.run(3, training, str(tmp_path / "store"), 1, hooked, 0.0005, initialise=False, may_die=[1])


def growing(path):
    """Two ranks train, the third joins: it gets the weights, and all go on alike."""
    member = Member(path)
    handles, rank = member.handles(), member.first_rank
    model = network()
    if rank < 2:
        member.go_to(0, handles[:2])
        model = torch.nn.parallel.DistributedDataParallel(model)
        loss(model, rank, 0).backward()
        torch.optim.SGD(model.parameters(), 0.5).step()
    member.go_to(1, handles)
    for p in model.parameters():
        member.dist.broadcast(p.detach(), 0)
    if rank < 2:
        model._update_process_group(member.group)
        member.dist.barrier()
        model = model.module
    else:
        member.dist.barrier()
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.zero_grad()
    loss(model, rank, 1).backward()
    alone = network()
    (sum(loss(alone, other, 0) for other in range(2)) / 2).backward()
    torch.optim.SGD(alone.parameters(), 0.5).step()
    alone.zero_grad()
    (sum(loss(alone, other, 1) for other in range(SIZE)) / SIZE).backward()
    for ours, theirs in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)


def test_a_rank_joins(tmp_path) -> None:
    ranks.run(3, growing, str(tmp_path / "store"), initialise=False)
