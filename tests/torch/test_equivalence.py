"""N ranks at batch B train as one process does at batch N·B, and all ranks hold the same bits at every step."""

from __future__ import annotations

import pytest
import ranks

torch = pytest.importorskip("torch")
import torch_optimizers  # noqa: E402 (it needs torch, which may not be there)

STEPS, BATCH = 6, 4
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-3),
}


def build(dtype):
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 6 * 6, 33),
        torch.nn.Tanh(),
        torch.nn.Linear(33, 5),
    )
    return model.to(dtype)


def batches(dtype, size):
    make = torch.Generator().manual_seed(11)
    for _ in range(STEPS):
        x = torch.randn(size * BATCH, 1, 6, 6, generator=make, dtype=torch.float64).to(dtype)
        yield x, torch.randint(0, 5, (size * BATCH,), generator=make)


def train(model, optimizer, dtype, size, own):
    losses = []
    for x, y in batches(dtype, size):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[own]), y[own])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def on_rank(dtype_name):
    import ddl_torch as ddl

    dtype, size, rank = getattr(torch, dtype_name), ddl.size(), ddl.rank()
    tolerance = {"rtol": 1e-12, "atol": 1e-14} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-6}
    own, everything = slice(rank * BATCH, (rank + 1) * BATCH), slice(None)
    sent = []
    for make in OPTIMIZERS.values():
        alone = build(dtype)
        expected = train(alone, make(alone.parameters()), dtype, size, everything)
        for bucket_bytes, overlap in ((256, True), (256, False), (8 << 20, None)):  # many buckets, and one
            model = build(dtype)
            optimizer = ddl.DistributedOptimizer(
                make(model.parameters()), model.named_parameters(), bucket_bytes=bucket_bytes, overlap=overlap
            )
            losses = train(model, optimizer, dtype, size, own)
            torch.testing.assert_close(weights(model), weights(alone), **tolerance)
            torch.testing.assert_close(ddl.allreduce(losses), expected, **tolerance)
            rows = ddl.allgather(weights(model).unsqueeze(0))
            assert all(torch.equal(row, rows[0]) for row in rows)
            assert expected[-1] != expected[0]
            sent.append(optimizer.statistics())
    return sent


@pytest.mark.few(1)
@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_n_ranks_train_as_one_process(size, dtype):
    for statistics in ranks.run(size, on_rank, dtype, env={"OMP_NUM_THREADS": "1"}):
        for of_rank in statistics:
            assert of_rank["steps"] == STEPS
            assert of_rank["bytes"] > STEPS * 4 * (4 * 36 * 33)
            assert of_rank["seconds_waiting"] > 0


class Table(torch.nn.Module):
    """An embedding with sparse gradients, looked up by the first column."""

    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Embedding(20, 3, sparse=True)

    def forward(self, x):
        return self.rows((10 * x[:, 0].abs()).long() % 20)


def build_for(name):
    """A small model of float64 with parameters that the optimizer takes."""
    torch.manual_seed(5)
    if name in torch_optimizers.SPARSE:
        return Table().double()
    bias = name not in torch_optimizers.MATRICES
    layers = (torch.nn.Linear(7, 9, bias=bias), torch.nn.Tanh(), torch.nn.Linear(9, 3, bias=bias))
    return torch.nn.Sequential(*layers).double()


def train_by_closure(model, optimizer, size, own):
    """Train on ``own`` of each batch; the closure serves optimizers that need one, and others call it once."""
    make = torch.Generator().manual_seed(13)
    for _ in range(STEPS):
        x = torch.randn(size * BATCH, 7, generator=make, dtype=torch.float64)[own]

        def closure(x=x):
            optimizer.zero_grad()
            loss = (model(x) - x[:, :3]).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def every_optimizer():
    import ddl_torch as ddl

    size, rank = ddl.size(), ddl.rank()
    own, everything = slice(rank * BATCH, (rank + 1) * BATCH), slice(None)
    trained = []
    for name, settings in torch_optimizers.cases():
        make = torch_optimizers.classes()[name]
        alone, model = build_for(name), build_for(name)
        optimizer = ddl.DistributedOptimizer(make(model.parameters(), **settings), model.named_parameters())
        train_by_closure(alone, make(alone.parameters(), **settings), size, everything)
        train_by_closure(model, optimizer, size, own)
        what = f"{name} {settings}"
        torch.testing.assert_close(
            weights(model), weights(alone), rtol=1e-10, atol=1e-12, msg=lambda text, what=what: f"{what}: {text}"
        )
        assert (weights(model) - weights(build_for(name))).abs().max() > 1e-5, f"{what} moved nothing"
        rows = ddl.allgather(weights(model).unsqueeze(0))
        assert all(torch.equal(row, rows[0]) for row in rows), f"{what}: ranks differ"
        trained.append(name)
    return trained


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 4])
def test_every_optimizer_of_torch(size):
    for trained in ranks.run(size, every_optimizer, env={"OMP_NUM_THREADS": "1"}):
        assert set(trained) == set(torch_optimizers.classes())
