"""What people train with on ``torch.distributed`` gives on the backend "ddl" what it gives on gloo."""

from __future__ import annotations

import pytest
import ranks
from process_groups import begin

torch = pytest.importorskip("torch")
nn = torch.nn


def network(norm=True):
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(64) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(10, 64), nn.Tanh(), middle, nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))


class Data:
    """This rank's part of some numbers that two classes can be told by."""

    def __init__(self, rank, size):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(64 * size, 10, generator=generator)
        self.x = x[64 * rank : 64 * (rank + 1)]
        self.y = (self.x[:, :3].sum(1) > 0).long()

    def loss(self, model, part=slice(None)):
        return nn.functional.cross_entropy(model(self.x[part]), self.y[part])


def weights(model):
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().ravel() for p in whole])


def trained(model, optimizer, data, steps=6, accumulate=False):
    for _ in range(steps):
        optimizer.zero_grad()
        if accumulate:
            with model.no_sync():
                data.loss(model, slice(32)).backward()
            data.loss(model, slice(32, None)).backward()
        else:
            data.loss(model).backward()
        optimizer.step()
    return weights(model)


def with_ddp(group, data):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def ddp(**options):
        return nn.parallel.DistributedDataParallel(network(), process_group=group, **options)

    def sgd(model):
        return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    for name, options in (
        ("plain", {}),
        ("gradient_as_bucket_view", {"gradient_as_bucket_view": True}),
        ("static_graph", {"static_graph": True}),
        ("find_unused_parameters", {"find_unused_parameters": True}),
        ("many small buckets", {"bucket_cap_mb": 0.001}),
    ):
        model = ddp(**options)
        yield name, trained(model, sgd(model), data)
    model = ddp()
    yield "no_sync", trained(model, torch.optim.Adam(model.parameters(), 0.01), data, accumulate=True)
    for name, state, hook in (
        ("allreduce hook", group, default_hooks.allreduce_hook),
        ("fp16 hook", group, default_hooks.fp16_compress_hook),
        ("PowerSGD", powerSGD_hook.PowerSGDState(group, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook),
    ):
        model = ddp()
        model.register_comm_hook(state, hook)
        yield name, trained(model, sgd(model), data)


def with_uneven_ranks(group, data):
    model = nn.parallel.DistributedDataParallel(network(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with model.join():
        trained(model, optimizer, data, steps=2 + group.rank())
    yield "join", weights(model)


def with_zero(group, data):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(network(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
    yield "ZeroRedundancyOptimizer", trained(model, optimizer, data)


HAS_FSDP2 = hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard")  # older versions of torch have none


def with_fsdp(group, data, path):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")

    def sharded():
        model = network(norm=False)
        for layer in (model[0], model[3]):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    model = sharded()
    yield "fully_shard", trained(model, torch.optim.Adam(model.parameters(), 0.01), data)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=path, process_group=group)
    other = sharded()
    state = {"model": other.state_dict()}
    checkpoint.load(state, checkpoint_id=path, process_group=group)
    other.load_state_dict(state["model"])
    assert torch.equal(weights(other), weights(model))
    yield "checkpoint", weights(other)


def everything(path):
    dist, r, n = begin(f"{path}/store")
    data = Data(r, n)
    results = {}
    for backend in ("ddl", "gloo"):
        group = dist.new_group(list(range(n)), backend=backend)
        assert dist.get_backend(group) == backend
        results[backend] = {
            **dict(with_ddp(group, data)),
            **dict(with_uneven_ranks(group, data)),
            **dict(with_zero(group, data)),
        }
        if HAS_FSDP2:
            results[backend].update(with_fsdp(group, data, f"{path}/{backend}"))
    dist.destroy_process_group()
    return {
        backend: {name: weights.numpy() for name, weights in by_name.items()} for backend, by_name in results.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_training_as_with_gloo(size: int, tmp_path) -> None:
    answers = ranks.run(size, everything, str(tmp_path), initialise=False)
    assert len(answers[0]["ddl"]) == (13 if HAS_FSDP2 else 11)
    for name, weights in answers[0]["ddl"].items():
        for other in answers[1:]:
            assert (other["ddl"][name] == weights).all(), name  # all ranks have the same bits
        wanted = answers[0]["gloo"][name]
        if size == 2:
            assert (weights == wanted).all(), name  # two numbers have one sum
        tolerance = 1e-3 if name == "fp16 hook" else 1e-5
        torch.testing.assert_close(torch.from_numpy(weights), torch.from_numpy(wanted), rtol=tolerance, atol=tolerance)
