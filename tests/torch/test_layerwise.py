"""LARS and LAMB do what the papers' algorithms say, written down again here in numpy, on one rank and on many."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import ranks

torch = pytest.importorskip("torch")

STEPS = 5
SHAPES = {"weight": (4, 3), "kernel": (2, 3, 2, 2), "bias": (4,), "scale": ()}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

LARS = {
    "plain": {"lr": 0.5, "momentum": 0.0},
    "momentum": {"lr": 0.5, "weight_decay": 0.1},
    "nesterov": {"lr": 0.5, "weight_decay": 0.1, "nesterov": True, "trust_coefficient": 0.02, "eps": 0.1},
}
LAMB = {
    "plain": {"lr": 0.1, "weight_decay": 0.0},
    "decay": {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.9)},
    "uncorrected": {"lr": 0.1, "bias_correction": False, "eps": 1e-3},
    "clamped": {"lr": 0.1, "weight_norm_bounds": (0.5, 1.5)},
    "limited": {"lr": 0.1, "max_trust_ratio": 0.25},
}
CASES = [("LARS", name) for name in LARS] + [("LAMB", name) for name in LAMB]


def numpy_lars(
    w, gradients, adapt, lr, momentum=0.9, weight_decay=0.0, trust_coefficient=1e-3, eps=1e-8, nesterov=False
):
    v = np.zeros_like(w)
    for g in gradients:
        local = 1.0
        if adapt:
            norm = np.sqrt((w * w).sum())
            local = trust_coefficient * norm / (np.sqrt((g * g).sum()) + weight_decay * norm + eps)
        change = lr * local * (g + weight_decay * w)
        v = momentum * v + change
        w = w - (change + momentum * v if nesterov else v)
    return w


def numpy_lamb(w, gradients, adapt, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, **options):
    bounds = options.get("weight_norm_bounds", (0, np.inf))
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        c = [1 - beta**t if options.get("bias_correction", True) else 1 for beta in betas]
        u = (m / c[0]) / (np.sqrt(v / c[1]) + eps) + weight_decay * w
        trust = 1.0
        if adapt:
            trust = np.clip(np.sqrt((w * w).sum()), *bounds) / np.sqrt((u * u).sum())
            trust = min(trust, options.get("max_trust_ratio", np.inf))
        w = w - lr * trust * u
    return w


def values(seed):
    make = np.random.default_rng(seed)
    return {name: np.asarray(make.normal(size=shape)) for name, shape in SHAPES.items()}


def parameters(dtype=torch.float64):
    return {name: torch.nn.Parameter(torch.tensor(value, dtype=dtype)) for name, value in values(0).items()}


def optimizer_for(kind, case, named, exclude=None):
    import ddl_torch

    groups = ddl_torch.layerwise_groups(named.items(), *([] if exclude is None else [exclude]))
    return getattr(ddl_torch, kind)(groups, **{"LARS": LARS, "LAMB": LAMB}[kind][case])


def give_gradients(named, step, scale=1.0):
    for name, value in values(1 + step).items():
        named[name].grad = torch.tensor(scale * value).to(named[name].dtype)


@pytest.mark.parametrize(("kind", "case"), CASES, ids="-".join)
def test_steps_are_those_of_the_paper(kind, case):
    named = parameters()
    optimizer = optimizer_for(kind, case, named)
    for step in range(STEPS):
        give_gradients(named, step)
        given = {name: p.grad.clone() for name, p in named.items()}
        optimizer.step()
        assert all(torch.equal(p.grad, given[name]) for name, p in named.items())  # they are not the optimizer's
    reference, options = {"LARS": (numpy_lars, LARS), "LAMB": (numpy_lamb, LAMB)}[kind]
    for name, p in named.items():
        adapt = len(SHAPES[name]) > 1
        own = {**options[case], **({} if adapt else {"weight_decay": 0.0})}
        gradients = [values(1 + step)[name] for step in range(STEPS)]
        expected = reference(values(0)[name], gradients, adapt, **own)
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(("kind", "case"), [("LARS", "nesterov"), ("LAMB", "decay")], ids="-".join)
def test_saved_state_goes_on_to_the_bit(kind, case):
    named = parameters()
    optimizer = optimizer_for(kind, case, named)
    for step in range(STEPS):
        if step == 2:
            fresh = {name: torch.nn.Parameter(p.detach().clone()) for name, p in named.items()}
            resumed = optimizer_for(kind, "plain", fresh)
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        give_gradients(named, step)
        optimizer.step()
        if step >= 2:
            give_gradients(fresh, step)
            resumed.step()
            assert all(torch.equal(fresh[name], p) for name, p in named.items())


@pytest.mark.parametrize("kind", ["LARS", "LAMB"])
def test_zero_weights_grow_and_zero_gradients_leave_all_finite(kind):
    weight, unused = torch.nn.Parameter(torch.zeros(3, 3)), torch.nn.Parameter(torch.ones(3, 3))
    optimizer = optimizer_for(kind, "plain", {"weight": weight, "unused": unused})
    weight.grad, unused.grad = torch.ones(3, 3), torch.zeros(3, 3)
    optimizer.step()
    rate = optimizer.param_groups[0]["lr"]
    torch.testing.assert_close(weight.detach(), torch.full((3, 3), -rate))
    assert torch.equal(unused.detach(), torch.ones(3, 3))


@pytest.mark.parametrize("kind", ["LARS", "LAMB"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_norms_of_short_types_do_not_overflow(kind, dtype):
    parameter = torch.nn.Parameter(torch.full((300, 300), 300.0, dtype=dtype))  # norm 90,000: beyond float16
    optimizer = optimizer_for(kind, "plain", {"weight": parameter})
    parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    assert parameter.dtype == dtype
    lr = optimizer.param_groups[0]["lr"]
    change = lr * 300 * (1e-3 if kind == "LARS" else 1)  # the trust ratio makes it a share of the weights' norm
    torch.testing.assert_close(parameter.float().mean().item(), 300 - change, rtol=0.005, atol=0)


def test_a_closure_is_called_with_gradients_on():
    parameter = torch.nn.Parameter(torch.tensor([[2.0]]))
    optimizer = optimizer_for("LARS", "plain", {"weight": parameter})

    def closure():
        loss = parameter.pow(2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4
    torch.testing.assert_close(parameter.item(), 2 - 0.5 * 0.001 * 2 / 4 * 4)


def test_layerwise_groups_sorts_parameters():
    import ddl_torch

    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(2, 3))
    adapted, excluded = ddl_torch.layerwise_groups(model.named_parameters())
    assert [id(p) for p in adapted["params"]] == [id(model[0].weight), id(model[2].weight)]
    assert len(excluded["params"]) == 4 and excluded["adapt"] is False and excluded["weight_decay"] == 0
    only, last = ddl_torch.layerwise_groups(model.named_parameters(), lambda name, p: name.startswith("2."))
    assert len(only["params"]) == 4 and [id(p) for p in last["params"]] == [id(p) for p in model[2].parameters()]
    assert len(ddl_torch.layerwise_groups(model.named_parameters(), lambda name, p: False)) == 1


def test_what_cannot_be_done_is_refused_before_anything_changes():
    from ddl_torch import LAMB, LARS, InvalidArgument

    for kind in (LARS, LAMB):
        first = torch.nn.Parameter(torch.ones(2, 2))
        table = torch.nn.Embedding(3, 2, sparse=True)
        optimizer = kind([first, table.weight], lr=0.1)
        first.grad = torch.ones(2, 2)
        table(torch.tensor([1])).sum().backward()
        with pytest.raises(InvalidArgument, match=r"shape \(3, 2\) has a sparse gradient.*sparse=False"):
            optimizer.step()
        assert torch.equal(first.detach(), torch.ones(2, 2)) and not optimizer.state
        phase = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
        optimizer = kind([phase], lr=0.1)
        phase.grad = torch.ones_like(phase)
        with pytest.raises(InvalidArgument, match="complex"):
            optimizer.step()
    wrong = [(LARS, name, value) for name, value in (("lr", -1), ("momentum", 1), ("trust_coefficient", 0))]
    wrong += [(LARS, "eps", -1), (LARS, "weight_decay", math.nan), (LAMB, "betas", (0.9, 1.0)), (LAMB, "lr", math.inf)]
    wrong += [(LAMB, "weight_norm_bounds", (2, 1)), (LAMB, "max_trust_ratio", 0)]
    for kind, name, value in wrong:
        with pytest.raises(InvalidArgument, match=f"{kind.__name__}: {name}="):
            kind([first], **{"lr": 0.1, name: value})
    with pytest.raises(InvalidArgument, match="needs a momentum"):
        LARS([first], lr=0.1, momentum=0, nesterov=True)


def as_one_process():
    """Gradients of step s on rank r are (1 + r) times those of the test above; their mean is what one process gets."""
    import ddl_torch as ddl

    mean = sum(range(1, ddl.size() + 1)) / ddl.size()
    for kind, case in CASES:
        alone, named = parameters(), parameters()
        plain = optimizer_for(kind, case, alone)
        optimizer = ddl.DistributedOptimizer(optimizer_for(kind, case, named), named.items(), bucket_bytes=64)
        for step in range(STEPS):
            give_gradients(alone, step, mean)
            plain.step()
            optimizer.zero_grad()
            loss = sum((torch.tensor(value) * named[name]).sum() for name, value in values(1 + step).items())
            ((1 + ddl.rank()) * loss).backward()
            optimizer.step()
        for name, p in named.items():
            torch.testing.assert_close(p.detach(), alone[name].detach(), rtol=1e-12, atol=1e-14)
            rows = ddl.allgather(p.detach().reshape(1, -1))
            assert all(torch.equal(row, rows[0]) for row in rows)
        ddl.broadcast_optimizer_state(optimizer, root_rank=ddl.size() - 1)
    return True


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3])
def test_n_ranks_step_as_one_process(size):
    assert ranks.run(size, as_one_process, env=ONE_THREAD) == [True] * size
