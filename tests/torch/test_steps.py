"""Every step of an optimizer is noted in the rank's record, once: whatever wraps it, and however it averages."""

from __future__ import annotations

import pytest
import ranks
from own_record import own_record, steps

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.processes


class CallsItsBase(torch.optim.SGD):
    """A step that calls its base class's step: hooks of both are called."""

    def step(self, closure=None):
        return super().step(closure)


def model_of(rank):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    return model, torch.randn(6, 5, generator=torch.Generator().manual_seed(rank))


def wrapped(ddl, make, **how):
    """Return a model's loss and its distributed optimizer."""
    model, x = model_of(ddl.rank())
    optimizer = ddl.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **how)
    return (lambda: model(x).pow(2).mean()), optimizer


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def noted(loss, optimizer, passes=1, updates=3):
    """Return how many steps are noted in ``updates`` updates of ``passes`` backward passes each."""
    before = steps()
    for update in range(updates):
        optimizer.zero_grad()
        for _ in range(passes):
            loss().backward()
        assert steps() == before + update
        optimizer.step()
    return steps() - before


def every_mode():
    import ddl_torch as ddl

    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # so that its step calls hooks, in CallsItsBase, too
    modes = {
        "plain": (sgd, {}),
        "overlapped": (sgd, {"overlap": True}),
        "updated early": (torch.optim.Adam, {"overlap_update": True, "bucket_bytes": 1}),
        "in two steps": (lambda parameters: CallsItsBase(parameters, lr=0.1), {}),
        "LARS": (lambda parameters: ddl.LARS(parameters, lr=0.1), {}),
        "PowerSGD": (sgd, {"compression": "powersgd"}),
        "a part of the ranks": (sgd, {"communicator": ddl.world().split(ddl.rank())}),
    }
    if ddl.size() > 1:
        modes["checked"] = (sgd, {"check": 1})
    for base in (sgd, lambda parameters: CallsItsBase(parameters, lr=0.1)):
        modes[f"Adasum {base}"] = (base, {"op": ddl.Adasum})
    counts = {name: noted(*wrapped(ddl, make, **how)) for name, (make, how) in modes.items()}
    assert counts == dict.fromkeys(modes, 3)
    ended = own_record().steps.ended
    assert len(ended) == 3 * len(modes) and list(ended) == sorted(ended)


@pytest.mark.parametrize("size", [1, 2])
def test_every_mode(size) -> None:
    ranks.run(size, every_mode)


def several_passes_and_closures():
    import ddl_torch as ddl

    assert noted(*wrapped(ddl, sgd, backward_passes_per_step=4), passes=4) == 3
    loss, optimizer = wrapped(ddl, lambda parameters: torch.optim.LBFGS(parameters, max_iter=5))

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    before = steps()
    for _ in range(2):
        optimizer.step(closure)
    assert steps() == before + 2


def test_several_passes_and_closures() -> None:
    ranks.run(2, several_passes_and_closures)


def wrapped_again():
    """A scaler leaves out a step where the averages are infinite, and so does the record."""
    import ddl_torch as ddl

    loss, optimizer = wrapped(ddl, sgd)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    before = steps()
    for number in range(4):
        optimizer.zero_grad()
        scaler.scale(loss() * (float("inf") if number == 1 and ddl.rank() == 1 else 1.0)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if number != 1:
            schedule.step()
    assert steps() == before + 3
    optimizer.zero_grad()
    loss().backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert steps() == before + 4


def test_wrapped_again() -> None:
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this torch has no scaler for the CPU")
    ranks.run(2, wrapped_again)


def by_shards():
    import ddl_torch as ddl

    model, _ = model_of(0)
    optimizer = sgd(model.parameters())
    numbers = torch.randn(24, 5, generator=torch.Generator().manual_seed(2))
    batches = ddl.elastic.ElasticBatches(numbers, 2, shards=6)
    training = ddl.elastic.TrainingByShards(model, optimizer, batches)
    for _ in training.epochs(2):
        for shards in training.steps(torch.utils.data.DataLoader(numbers, batch_sampler=batches)):
            for x in shards:
                model(x).pow(2).mean().backward()
            if training.finished != 1:  # a step that the script leaves out counts all the same
                optimizer.step()
    assert steps() == training.finished == 4


def test_training_by_shards() -> None:
    ranks.run(2, by_shards)


def not_by_ddl():
    """Docs say what to do about an optimizer that DDL does not know."""
    import ddl_torch as ddl
    from ddl.adapter.step_record import note_step

    model, x = model_of(ddl.rank())
    optimizer = sgd(model.parameters())
    assert noted(lambda: model(x).sum(), optimizer, updates=0) == 0
    model(x).sum().backward()
    optimizer.step()
    assert steps() == 0
    optimizer.register_step_post_hook(lambda *_: note_step())
    assert noted(lambda: model(x).sum(), optimizer) == 3


def test_an_optimizer_that_is_not_distributed() -> None:
    ranks.run(1, not_by_ddl)
