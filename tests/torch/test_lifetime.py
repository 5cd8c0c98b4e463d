"""Nothing outlives an optimizer: no hook, no shared memory, no object; nor does training pile anything up."""

from __future__ import annotations

import gc
import weakref

import pytest
import ranks

torch = pytest.importorskip("torch")


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()


def nothing_leaks():
    import ddl as ddl_core
    import ddl_torch as ddl
    from ddl import _core

    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Linear(512, 512))
    after = []
    for _ in range(5):
        optimizer = ddl.DistributedOptimizer(torch.optim.Adam(model.parameters()), bucket_bytes=1 << 20)
        train(model, optimizer, 3)
        during = _core.arena_used()
        assert during >= 4 * (512 * 512 + 64 * 512)
        train(model, optimizer, 20)
        gc.collect()
        assert _core.arena_used() == during
        assert all(ddl_core.is_shared(p.grad.numpy()) for p in model.parameters())

        watched = [weakref.ref(optimizer), weakref.ref(optimizer._ddl), weakref.ref(optimizer._ddl._layout.buckets[0])]
        model(torch.ones(2, 64)).sum().backward()  # deleted with buckets under way
        ddl.barrier()
        del optimizer
        gc.collect()
        assert [ref() for ref in watched] == [None, None, None]
        model.zero_grad()  # gradients are views of the buckets until then
        ddl.barrier()
        after.append(_core.arena_used())
        model(torch.ones(2, 64)).sum().backward()
        assert not any(ddl_core.is_shared(p.grad.numpy()) for p in model.parameters()), "a hook is left"
    # What communicators have taken by then: the world of the first optimizer, one that the others have in turn, and the
    # record of the last one that is gone, and of one that goes. Each has some 400 kB for what it records.
    assert after[-1] < 1_700_000 and len(set(after[2:])) == 1, after
    return True


def memory_is_kept_by_gradients_alone():
    import ddl_torch as ddl

    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.5))
    (parameter * (1 + ddl.rank())).sum().backward()
    optimizer.step()
    del optimizer
    gc.collect()
    assert torch.equal(parameter.grad, torch.full((4,), 1.5))
    return True


def run_lifetime():
    return nothing_leaks() and memory_is_kept_by_gradients_alone()


@pytest.mark.slow
@pytest.mark.processes
def test_lifetime():
    assert ranks.run(2, run_lifetime, env={"OMP_NUM_THREADS": "1"}) == [True, True]
