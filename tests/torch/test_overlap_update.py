"""``overlap_update``: a step in parts, bucket by bucket, is the same step, to the bit, and scripts see one."""

from __future__ import annotations

import pytest
import ranks

torch = pytest.importorskip("torch")
import torch_optimizers  # noqa: E402 (it needs torch, which may not be there)
from torch_training import SCALERS, both, linear, loss_of, scaler_of, sgd  # noqa: E402

pytestmark = pytest.mark.processes
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def build(bias=True):
    torch.manual_seed(3)
    layers = [torch.nn.Linear(6, 8, bias=bias), torch.nn.Tanh(), torch.nn.Linear(8, 5, bias=bias), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(5, 2, bias=bias))


def backward(model, number, rank):
    make = torch.Generator().manual_seed(100 * number + rank)
    model(torch.randn(4, 6, generator=make)).square().mean().backward()


def every_optimizer():
    import ddl_torch as ddl

    done = []
    for name, settings in [*torch_optimizers.cases(), ("LARS", {"lr": 0.5}), ("LAMB", {"lr": 0.1})]:
        make = torch_optimizers.classes().get(name) or getattr(ddl, name)
        if name in (*torch_optimizers.SPARSE, "LBFGS"):
            continue
        finals = []
        for overlap_update in (False, True):
            model = build(bias=name not in torch_optimizers.MATRICES)
            optimizer = ddl.DistributedOptimizer(
                make(model.parameters(), **settings),
                model.named_parameters(),
                bucket_bytes=64,
                overlap_update=overlap_update,
            )
            for number in range(4):
                optimizer.zero_grad()
                backward(model, number, ddl.rank())
                optimizer.step()
            gradients = [p.grad for p in model.parameters()]
            finals.append([p.detach() for p in model.parameters()] + gradients)
        for weight, other in zip(*finals):
            assert torch.equal(weight, other), (name, settings)
        done.append(name)
    return done


@pytest.mark.slow
def test_every_optimizer_ends_with_the_same_bits():
    for done in ranks.run(2, every_optimizer, env={"OMP_NUM_THREADS": "1"}):
        assert {"SGD", "Adam", "AdamW", "Adagrad", "LARS", "LAMB"} <= set(done)


def looks_like_one_step():
    import ddl_torch as ddl
    from ddl_torch.gradients.update import PartialUpdates

    model = build()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    before, after = [], []
    plain.register_step_post_hook(lambda *_: after.append([p.grad is not None for p in model.parameters()]))
    optimizer = ddl.DistributedOptimizer(plain, model.named_parameters(), bucket_bytes=64, overlap_update=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    parts = []
    update = PartialUpdates.update
    PartialUpdates.update = lambda self, optimizer, entries: (parts.append(entries), update(self, optimizer, entries))
    try:
        for number in range(2):
            optimizer.zero_grad()
            backward(model, number, ddl.rank())
            optimizer.step()
            schedule.step()
    finally:
        PartialUpdates.update = update
    assert len(parts) == 2 * (len(optimizer._ddl._layout.buckets) - 1) > 2, "the last bucket is left to the step itself"
    plain.register_step_pre_hook(lambda *_: before.append(len(before)))
    assert after == [[True] * 6] * 2
    optimizer.zero_grad()
    backward(model, 2, ddl.rank())
    optimizer.synchronize()
    assert before == []
    averages = [p.grad.clone() for p in model.parameters()]
    weights = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert before == [0] and len(parts) == 2 * (len(optimizer._ddl._layout.buckets) - 1)
    for p, weight, average in zip(model.parameters(), weights, averages):
        assert torch.equal(p, weight.sub_(average, alpha=0.025)), "clipping goes on working: nothing is done twice"


def test_scripts_see_one_step():
    ranks.run(2, looks_like_one_step)


def gradients_come_back():
    import ddl_torch as ddl

    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ddl.DistributedOptimizer(optimizer, model.named_parameters(), bucket_bytes=64, overlap_update=True)
    backward(model, 0, ddl.rank())
    last = model[0].weight  # the bucket that is waited for last
    last.grad = torch.zeros_like(last)
    with pytest.raises(ddl.InvalidState, match="gradients were changed"):
        optimizer.step()
    assert all(p.grad is not None for p in model.parameters())
    ddl.broadcast_parameters(model.state_dict())  # a part of the step was done
    optimizer.zero_grad()
    backward(model, 1, ddl.rank())
    optimizer.step()


def memory_stays():
    """New memory in each step would cost new pages, on a GPU a wait for all that its stream has, too."""
    import ddl_torch as ddl

    model = build()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ddl.DistributedOptimizer(plain, model.named_parameters(), bucket_bytes=64, overlap_update=True)
    places = []
    for number in range(4):
        optimizer.zero_grad()
        backward(model, number, ddl.rank())
        optimizer.step()
        places.append([p.grad.data_ptr() for p in model.parameters()])
    assert places[1:] == places[:-1]


def sparse_and_dense():
    import ddl_torch as ddl

    finals = []
    for overlap_update in (False, True):
        torch.manual_seed(2)
        model = torch.nn.Sequential(torch.nn.Embedding(9, 4, sparse=True), torch.nn.Linear(4, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ddl.DistributedOptimizer(
            optimizer, model.named_parameters(), bucket_bytes=16, overlap_update=overlap_update
        )
        for number in range(3):
            optimizer.zero_grad()
            model(torch.tensor([number, ddl.rank()])).square().sum().backward()
            optimizer.step()
        finals.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(weight, other) for weight, other in zip(*finals))


def refused():
    import ddl_torch as ddl

    class Own(torch.optim.SGD):
        pass

    model = build()
    for make, options, says in (
        (torch.optim.LBFGS, {}, "LBFGS"),
        (Own, {}, "Own may decide"),
        (torch.optim.SGD, {"check": 1}, "check="),
        (torch.optim.SGD, {"op": ddl.Adasum}, "Adasum"),
    ):
        optimizer = make(model.parameters(), lr=0.1)
        with pytest.raises(ddl.InvalidArgument, match=says):
            ddl.DistributedOptimizer(optimizer, model.named_parameters(), overlap_update=True, **options)


@pytest.mark.parametrize("case", [gradients_come_back, memory_stays, sparse_and_dense, refused])
def test_special_cases(case):
    ranks.run(2, case)


def unscale(optimizer):
    scaler = scaler_of()
    scaler.scale(torch.ones(1))  # it is not ready before
    scaler.unscale_(optimizer)


def refuses_to_be_read():
    """With overlap_update, averages are awaited by ``step``: nobody reads what is not there yet."""
    import ddl_torch as ddl

    model = linear(6, 10, 3)
    optimizer = ddl.DistributedOptimizer(sgd(model), overlap_update=True, bucket_bytes=512)
    for attempt in (
        *([lambda: unscale(optimizer)] if SCALERS else []),
        lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        lambda: model[0].weight.grad.data.clamp_(0, 1),
        lambda: model[0].weight.grad + 1,
        lambda: print(model[0].weight.grad),
    ):
        optimizer.zero_grad()
        loss_of(model, 0, ddl.rank()).backward()
        with pytest.raises(ddl.InvalidState, match=r"overlap_update=True.*optimizer.synchronize\(\) first"):
            attempt()
        optimizer.step()
    optimizer.zero_grad()
    loss_of(model, 0, ddl.rank()).backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert torch.equal(*ddl.allgather(weights.unsqueeze(0)))
    return True


def hooks_of_step(rank, wrap, model):
    """A hook of the step that clips sees all averages, also where parameters are updated early."""
    plain = sgd(model)
    early = plain.register_step_pre_hook(lambda *_: [torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05), None][1])
    optimizer = wrap(plain)
    for step in range(4):
        if step == 2:
            early.remove()
            optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3))
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()


def run_updates():
    for options in ({}, {"overlap_update": True}, {"overlap_update": True, "overlap": True}):
        both(hooks_of_step, **options)
    return refuses_to_be_read()


def test_an_early_update_lets_nobody_see_half_a_step():
    assert ranks.run(2, run_updates, env=ONE_THREAD) == [True] * 2
