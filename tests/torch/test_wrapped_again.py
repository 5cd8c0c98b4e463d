"""A model that is given to several optimizers, one after the other, and ranks that do not wrap it alike."""

from __future__ import annotations

import gc
import os

import pytest
import ranks

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.processes


def train(model, optimizer, steps=2):
    import ddl_torch as ddl

    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 3), 1.0 + ddl.rank())).sum().backward()
        optimizer.step()
        assert torch.equal(model.weight.grad, torch.full((3, 3), 1.5))


def the_newest_averages(**options):
    """Whether or not the old one has been collected, which differs by rank; also if that one is under way."""
    import ddl_torch as ddl

    model = torch.nn.Linear(3, 3)

    def wrap():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return ddl.DistributedOptimizer(optimizer, model.named_parameters(), **options)

    old = wrap()
    train(model, old)
    model(torch.ones(1, 3)).sum().backward()
    new = wrap()
    train(model, new)
    for use in (old.step, old.synchronize):
        with pytest.raises(
            ddl.InvalidState, match=r"\[rank ./2 host \S+\] parameter 'weight' has been given to another"
        ):
            use()
    old.zero_grad()
    if ddl.rank() == 0:
        del old, use  # the other rank has it still
    ddl.join()
    train(model, new)
    steps = new.statistics()["steps"]
    combining = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=ddl.Adasum)
    model(torch.ones(1, 3)).sum().backward()
    combining.step()
    assert new.statistics()["steps"] == steps
    again = wrap()
    with pytest.raises(ddl.InvalidState, match="has been given to another"):
        combining.step()
    train(model, again)


def descriptors_stay_few(**options):
    """Communicators are closed with the optimizer that they were made for."""
    import ddl_torch as ddl

    model = torch.nn.Linear(3, 3)
    counts = []
    for _ in range(6):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ddl.DistributedOptimizer(optimizer, model.named_parameters(), **options)
        train(model, optimizer)
        del optimizer
        gc.collect()
        ddl.barrier()
        counts.append(len(os.listdir("/proc/self/fd")))
    return counts[-1] - counts[1]


def different_operations():
    import ddl_torch as ddl

    model = torch.nn.Linear(3, 3)
    op = ddl.Adasum if ddl.rank() == 0 else ddl.Average
    with pytest.raises(ddl.InvalidArgument, match=r"on rank 0 there is op=Adasum; on rank 1 op=Average"):
        ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=op)


def run_all():
    import ddl_torch as ddl

    torch.set_num_threads(1)
    for overlap in (False, True):
        the_newest_averages(overlap=overlap)
    different_operations()
    everybody = ddl.split(0)
    options = [{}, {"deterministic": True}, {"compression": "bf16"}, {"op": ddl.Average, "deterministic": True}]
    return [
        descriptors_stay_few(communicator=everybody if n else None, **arguments) for n, arguments in enumerate(options)
    ]


@pytest.mark.slow
def test_the_newest_optimizer_averages_and_nothing_of_the_others_stays():
    assert ranks.run(2, run_all) == [[0] * 4] * 2
