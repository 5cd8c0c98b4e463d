"""Adasum of torch tensors, and of the steps of an optimizer: against the paper's formula in one process."""

from __future__ import annotations

import copy

import pytest
import ranks

torch = pytest.importorskip("torch")
#: Gradients of all weights come through a layer of float32.
CLOSE = {"rtol": 1e-5, "atol": 1e-7}


def adasum(a, b):
    """The formula of the paper, for one tensor of two ranks."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    product, aa, bb = ((vector.conj() * other).real.sum() for vector, other in ((x, y), (x, x), (y, y)))
    return (1 - product / (2 * aa) if aa else 1) * x + (1 - product / (2 * bb) if bb else 1) * y


def tensors():
    import ddl_torch as ddl

    rank = ddl.rank()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        both = [torch.randn(7, 3, dtype=dtype, generator=torch.Generator().manual_seed(r)) + 0.5 for r in range(2)]
        vector = both[rank].clone()
        version = vector._version
        assert ddl.adasum_(vector) is vector and vector._version > version
        expected = adasum(*both)
        torch.testing.assert_close(vector.to(expected.dtype), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)
        assert torch.equal(*ddl.allgather(vector.unsqueeze(0)))
    with pytest.raises(ddl.InvalidArgument, match="not contiguous"):
        ddl.adasum_(torch.ones(4, 4).t()[1:, 1:])
    with pytest.raises(ddl.InvalidArgument, match="int32"):
        ddl.adasum_(torch.ones(4, dtype=torch.int32))


# --- steps ---


class Model(torch.nn.Module):
    """A table that gets sparse gradients, layers of two types, and one that is frozen at first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.table = torch.nn.Embedding(9, 6, sparse=True, dtype=torch.float64)
        self.layer = torch.nn.Linear(6, 5, dtype=torch.float64)
        self.narrow = torch.nn.Linear(5, 4)
        self.frozen = torch.nn.Linear(4, 2).requires_grad_(False)
        self.unused = torch.nn.Parameter(torch.ones(3))

    def loss(self, rank, step):
        make = torch.Generator().manual_seed(2 * step + rank)
        words = torch.randint(0, 9, (8,), generator=make)
        narrow = self.narrow(self.layer(self.table(words)).tanh().float())
        return self.frozen(narrow).pow(2).mean() + (self.unused.sum() if rank and step % 2 else 0)


class DecaysAfterwards(torch.optim.SGD):
    """A step that calls its base class's step, and then changes the weights by what only this rank has."""

    def step(self, closure=None):
        loss = super().step(closure)
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                if p.grad is not None:
                    p.mul_(1 - 0.01 * float(p.grad.to_dense().abs().clamp(max=1).mean()))
        return loss


MAKERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.05),
    "adam": lambda model: torch.optim.AdamW([*model.layer.parameters(), *model.narrow.parameters()], lr=0.01),
    "after": lambda model: DecaysAfterwards(model.parameters(), lr=0.1),
}


def local_step(optimizer, model, rank, step, closure):
    """What a script does in a step; gradients are clipped, which needs no synchronize() here."""

    def evaluate():
        model.zero_grad()
        loss = model.loss(rank, step)
        loss.backward()
        torch.nn.utils.clip_grad_value_([p for p in model.layer.parameters()], 0.05)
        return loss

    if closure:
        return optimizer.step(evaluate)
    evaluate()
    return optimizer.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def in_one_process(make, steps):
    """Return the weights after each step: those of two copies of the model, whose deltas are combined by hand."""
    copies = [Model() for _ in range(2)]
    optimizers = [make(model) for model in copies]
    for step in range(steps):
        common = weights(copies[0])
        for rank, (model, optimizer) in enumerate(zip(copies, optimizers)):
            model.frozen.requires_grad_(step > 1)
            local_step(optimizer, model, rank, step, closure=False)
        with torch.no_grad():
            for before, p, q in zip(common, *(model.parameters() for model in copies)):
                p.copy_(before + adasum(p - before, q - before))
                q.copy_(p)
        yield weights(copies[0])


def combined_steps():
    import ddl_torch as ddl

    for name, make in MAKERS.items():
        expected_start = weights(Model())
        model = Model()
        optimizer = ddl.DistributedOptimizer(make(model), model.named_parameters(), op=ddl.Adasum)
        steps = 4 if name != "after" else 1  # of a step in two halves, each is combined by itself
        for step, expected in enumerate(in_one_process(make, steps)):
            model.frozen.requires_grad_(step > 1)
            loss = local_step(optimizer, model, ddl.rank(), step, closure=step % 2)
            assert (loss is None) == (step % 2 == 0)
            for p, q in zip(model.parameters(), expected):
                if name != "after":
                    torch.testing.assert_close(p.detach(), q, **CLOSE)
                assert torch.equal(*ddl.allgather(p.detach().unsqueeze(0))), (name, step)
        assert not torch.equal(model.layer.weight, expected_start[1])
        assert optimizer.statistics()["steps"] == steps and optimizer.statistics()["bytes"] > 0
        with pytest.raises(ddl.InvalidState, match="leave it out"), optimizer.skip_synchronize():
            pass
        optimizer.synchronize()
    return True


def after_an_error():
    """A step that fails after it has changed weights takes that back, and those after it are as any others."""
    import ddl_torch as ddl

    for early, late in ((True, False), (False, True)):
        fails_and_goes_on(ddl, early, late)


def fails_and_goes_on(ddl, *scheduled):
    """``scheduled``: whether a learning-rate scheduler is made before the optimizer is wrapped, and after it."""
    model = torch.nn.Linear(3, 2)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 9) for _ in range(scheduled[0])]
    optimizer = ddl.DistributedOptimizer(optimizer, op=ddl.Adasum)
    schedules += [torch.optim.lr_scheduler.StepLR(optimizer, 9) for _ in range(scheduled[1])]

    def fails():
        with torch.no_grad():
            model.weight += ddl.rank()
        raise KeyError("on purpose")

    with pytest.raises(KeyError):
        optimizer.step(fails)
    assert torch.equal(model.weight, torch.ones(2, 3))
    added = torch.nn.Parameter(torch.ones(5))
    optimizer.add_param_group({"params": [added]})
    for _ in range(2):
        model.weight.grad = torch.full((2, 3), 1.0 + ddl.rank())
        added.grad = torch.full((5,), 1.0 + ddl.rank())
        optimizer.step()
        for parameter in (model.weight, added):
            assert torch.equal(*ddl.allgather(parameter.detach().unsqueeze(0)))
        for schedule in schedules:
            schedule.step()
    assert optimizer.statistics()["steps"] == 2


def same_data_everywhere():
    """Parallel steps are averaged: with the same data on all ranks, training is that of one."""
    import ddl_torch as ddl

    model = Model()
    alone = copy.deepcopy(model)
    plain = MAKERS["sgd"](alone)
    optimizer = ddl.DistributedOptimizer(MAKERS["sgd"](model), op=ddl.Adasum)
    for step in range(3):
        local_step(plain, alone, 0, step, closure=False)
        local_step(optimizer, model, 0, step, closure=False)
    for p, q in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(p, q, **CLOSE)


def run_adasum():
    tensors()
    combined_steps()
    after_an_error()
    same_data_everywhere()
    return True


@pytest.mark.slow
@pytest.mark.processes
def test_adasum_of_two_ranks():
    assert ranks.run(2, run_adasum, env={"OMP_NUM_THREADS": "1"}) == [True, True]


def one_rank_alone():
    import ddl_torch as ddl

    model = Model()
    alone = copy.deepcopy(model)
    plain = MAKERS["adam"](alone)
    optimizer = ddl.DistributedOptimizer(MAKERS["adam"](model), op=ddl.Adasum)
    for step in range(3):
        local_step(plain, alone, 0, step, closure=False)
        local_step(optimizer, model, 0, step, closure=False)
    return all(torch.equal(p, q) for p, q in zip(model.parameters(), alone.parameters()))


@pytest.mark.slow
@pytest.mark.processes
def test_one_rank_takes_its_own_steps():
    assert ranks.run(1, one_rank_alone) == [True]
