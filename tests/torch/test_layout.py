"""Where gradients lie and when they are sent: unused and shared parameters, types, layouts, overlap with backward."""

from __future__ import annotations

import pytest
import ranks

torch = pytest.importorskip("torch")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def data(step):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


# --- which parameters are used ---


class Heads(torch.nn.Module):
    """A trunk and heads, of which a rank may use any."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.trunk = torch.nn.Linear(6, 9, dtype=torch.float64)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(9, 4, dtype=torch.float64) for _ in range(4))
        self.heads[3].weight = self.heads[0].weight  # shared

    def forward(self, x, head):
        return self.heads[head](self.trunk(x).tanh()).pow(2).mean()


def use_of_parameters():
    import ddl_torch as ddl

    alone, model = Heads(), Heads()
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer = ddl.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
        model.named_parameters(),
        bucket_bytes=256,
    )
    used = [(0, 1), (1, 0), (3, 3), (0, 3), (1, 1)]
    for step, heads in enumerate(used):
        plain.zero_grad()
        (sum(alone(data(step)[4 * r : 4 * r + 4], heads[r]) for r in range(2)) / 2).backward()
        plain.step()
        optimizer.zero_grad()
        model(data(step)[4 * ddl.rank() :][:4], heads[ddl.rank()]).backward()
        optimizer.step()
        for (name, p), q in zip(model.named_parameters(), alone.parameters()):
            assert (p.grad is None) == (q.grad is None), (step, name)
    assert torch.equal(model.heads[2].weight, Heads().heads[2].weight)  # nobody used it: not even decayed
    weights, expected = (torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in (model, alone))
    torch.testing.assert_close(weights, expected, rtol=1e-12, atol=1e-14)
    assert torch.equal(*ddl.allgather(weights.unsqueeze(0)))
    return True


@pytest.mark.processes
def test_ranks_use_different_parameters():
    assert ranks.run(2, use_of_parameters, env=ONE_THREAD) == [True, True]


# --- types, layouts, overlap ---


def types_and_layouts():
    import ddl_torch as ddl

    rank = ddl.rank()
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)
    parameters = [torch.nn.Parameter(torch.zeros(5, dtype=kind)) for kind in kinds for _ in range(2)]
    image = torch.nn.Parameter(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
    turned = torch.nn.Parameter(torch.zeros(4, 2, 3).permute(2, 0, 1))
    row = torch.nn.Parameter(torch.zeros(1).expand(1, 1))  # of stride 0
    scalar, nothing = torch.nn.Parameter(torch.zeros(())), torch.nn.Parameter(torch.zeros(0, 3))
    parameters += [image, turned, row, scalar, nothing]
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=ddl.Sum)
    weights = [torch.arange(p.numel()).view(p.shape).to(p.dtype) + rank for p in parameters]
    losses = [(p * w).sum() for p, w in zip(parameters, weights)]
    torch.autograd.backward(losses, [torch.ones((), dtype=p.dtype) for p in parameters])
    optimizer.step()
    for p in parameters:
        expected = -(2 * torch.arange(p.numel()).view(p.shape) + 1).to(p.dtype)
        assert torch.equal(p.detach(), expected), p.dtype
    assert image.grad.stride() == image.stride()
    assert turned.grad.stride() == turned.stride() != torch.zeros(3, 4, 2).stride()
    return True


def overlap():
    import ddl as core
    import ddl_torch as ddl

    model = torch.nn.Sequential(*(torch.nn.Linear(n, m).double() for n, m in ((6, 50), (50, 50), (50, 3))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ddl.DistributedOptimizer(optimizer, bucket_bytes=1024, overlap=True)
    seen = []
    model[0].bias.register_hook(lambda grad: seen.append(optimizer.statistics()["bytes"]))
    model(data(0)).pow(2).mean().backward()  # by which it learns that no pass runs inside this one
    before = optimizer.statistics()["bytes"]
    optimizer.step()
    optimizer.zero_grad()
    model(data(0)).pow(2).mean().backward()
    assert seen[0] == 0 and before < seen[1] < 2 * before  # sent while the backward pass went on
    storages = {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
    optimizer.step()
    assert storages == {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(storages) > 3
    assert all(core.is_shared(p.grad.numpy()) for p in model.parameters())
    return True


def run_types_and_overlap():
    return types_and_layouts() and overlap()


@pytest.mark.processes
def test_types_layouts_and_overlap():
    assert ranks.run(2, run_types_and_overlap, env=ONE_THREAD) == [True, True]
