"""``ddp_hook``: DDL averages the gradients of DDP on gloo; what goes wrong there reaches the backward pass."""

from __future__ import annotations

import datetime
import itertools
import os
import signal

import pytest
import ranks

torch = pytest.importorskip("torch")
STEPS = 6


def on_gloo(path):
    """A process group of gloo beside the job of DDL; return it, the rank, and the size."""
    import torch.distributed as dist

    import ddl_torch as ddl

    dist.init_process_group("gloo", store=dist.FileStore(path, ddl.size()), rank=ddl.rank(), world_size=ddl.size())
    return dist, ddl.rank(), ddl.size()


def wrapped(state=None, hook=None, **options):
    torch.manual_seed(0)
    layers = torch.nn.Linear(10, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), **options)
    if hook is not None:
        model.register_comm_hook(state, hook)
    return model


def trained(model, rank, steps=STEPS):
    x = torch.randn(64, 10, generator=torch.Generator().manual_seed(rank))
    y = (x[:, :3].sum(1) > 0).long()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return torch.cat([p.detach().ravel() for p in model.parameters()])


def training(path):
    dist, r, n = on_gloo(path)
    import ddl_torch as ddl
    from ddl_torch import ddp_hook

    part = ddl.world().subset(range(n))  # another communicator of all ranks
    weights, asked = {}, {}
    for name, communicator, hook, options in (
        ("plain", None, None, {}),
        ("one bucket", None, ddp_hook, {}),
        ("many buckets", None, ddp_hook, {"bucket_cap_mb": 0.001}),
        ("communicator", part, ddp_hook, {"gradient_as_bucket_view": True}),
    ):
        before = (communicator or ddl.world()).metrics().operations
        weights[name] = trained(wrapped(communicator, hook, **options), r).numpy()
        asked[name] = (communicator or ddl.world()).metrics().operations - before
    dist.destroy_process_group()
    return asked, weights


@pytest.mark.parametrize("size", [2, 4])
def test_training_as_with_gloo(size: int, tmp_path) -> None:
    answers = ranks.run(size, training, str(tmp_path / "store"))
    for asked, by_name in answers:
        assert asked.pop("many buckets") > STEPS
        assert asked == {"plain": 0, "one bucket": STEPS, "communicator": STEPS}  # it is DDL that averages
        wanted = by_name.pop("plain")
        for name, weights in by_name.items():
            assert (weights == answers[0][1][name]).all(), name  # all ranks have the same bits
            if size == 2:
                assert (weights == wanted).all(), name  # two numbers have one sum
            torch.testing.assert_close(torch.from_numpy(weights), torch.from_numpy(wanted), rtol=1e-5, atol=1e-5)


def dying(path):
    dist, r, n = on_gloo(path)
    import ddl_torch as ddl
    from ddl import PeerLost

    store, calls = dist.FileStore(f"{path}.calls", n), itertools.count()

    def noted(state, bucket):
        averaged = ddl.ddp_hook(state, bucket)
        store.set(f"{r} made call {next(calls)}", "")
        return averaged

    model = wrapped(None, noted)
    trained(model, r, steps=2)  # in the second one, DDP arranges its buckets anew, which is up to gloo
    if r == 1:
        store.wait(["0 made call 2", "2 made call 2"], datetime.timedelta(seconds=20))
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="PeerLost.* lost rank 1 .*its process ended"):
        trained(model, r, steps=1)
    with pytest.raises(PeerLost, match="lost rank 1"):
        ddl.barrier()


@pytest.mark.faults
def test_a_rank_dies_while_others_wait(tmp_path) -> None:
    ranks.run(3, dying, str(tmp_path / "store"), may_die=[1])


def without_init(path):
    import torch.distributed as dist

    import ddl_torch as ddl

    dist.init_process_group("gloo", store=dist.FileStore(path, 1), rank=0, world_size=1)
    model = wrapped(None, ddl.ddp_hook)
    with pytest.raises(ddl.InvalidState, match="init"):
        trained(model, 0, steps=1)


def test_without_init_the_backward_pass_says_so(tmp_path) -> None:
    ranks.run(1, without_init, str(tmp_path / "store"), initialise=False)
