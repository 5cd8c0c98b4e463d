"""A rank that leaves a step out, or a part of one, is told to all: weights never go apart without an error."""

from __future__ import annotations

import itertools

import pytest
import ranks

torch = pytest.importorskip("torch")
from torch_training import Fails, data, half, linear  # noqa: E402 (it needs torch, which may not be there)

pytestmark = pytest.mark.processes
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def sgd(model, **options):
    import ddl_torch as ddl

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return ddl.DistributedOptimizer(optimizer, tune_allocator=False, bucket_bytes=128, **options)


def backward(model, step, rank, fails=False):
    """The gradients of the last layer are there before it fails; then a bucket is sent, if averages overlap."""
    x = Fails.apply(model[1](model[0](half(data(step), rank))), fails)
    model[3](model[2](x)).pow(2).mean().backward()


def train(model, optimizer, step, rank):
    backward(model, step, rank)
    optimizer.step()


def same_everywhere(model):
    import ddl_torch as ddl

    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return torch.equal(*ddl.allgather(weights.unsqueeze(0)))


def error_of(function, *args):
    import ddl_torch as ddl

    with pytest.raises(ddl.InvalidState) as caught:
        function(*args)
    return str(caught.value)


def fails_on_rank_1(drop, **options):
    """Rank 1 catches an exception and goes on; rank 0 is told in that very step, and both go on together then."""
    import ddl_torch as ddl

    rank, model, plain = ddl.rank(), linear(6, 10, 3), linear(6, 10, 3)
    optimizer, alone = sgd(model, **options), torch.optim.SGD(plain.parameters(), lr=0.1)
    told = None
    for step in range(5):
        if rank == 1 and step == 2:
            with pytest.raises(ArithmeticError):
                backward(model, step, rank, fails=True)
            drop(optimizer, model)
            continue
        if step == 2:
            told = error_of(train, model, optimizer, step, rank)
            optimizer.zero_grad()
            continue
        train(model, optimizer, step, rank)
        optimizer.zero_grad()
        alone.zero_grad()
        backward(plain, step, None)
        alone.step()
    assert same_everywhere(model)
    for p, q in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(p, q)  # as if the batch had not been there
    if rank == 0:
        assert (
            told.startswith("[rank 0/2 host ")
            and " there are no averages in step 3" in told
            and "ended the backward pass on rank 1" in told
        )
        assert 'docs/training_loop.md, "Leaving a batch out"' in told


def by_the_optimizer(optimizer, model):
    optimizer.zero_grad()


def by_the_model(optimizer, model):
    model.zero_grad()  # DDL learns of it when the next backward pass begins


def keeps_what_came(elastic=False, **options):
    """Who drops nothing after an exception is told to, as ``p.grad`` has a part of the gradients."""
    import ddl_torch as ddl

    rank, model = ddl.rank(), linear(6, 10, 3)
    optimizer = sgd(model, **options)
    if elastic:  # gradients are left as they came, until they are sent
        optimizer._ddl.recover_by(lambda lost: pytest.fail(str(lost)))
    optimizer.zero_grad()
    if rank == 1:
        with pytest.raises(ArithmeticError):
            backward(model, 0, rank, fails=True)
        text = error_of(backward, model, 1, rank)
        assert "an exception has ended the last backward pass" in text and "optimizer.zero_grad()" in text
    else:
        assert "ended the backward pass on rank 1" in error_of(backward, model, 0, rank)
    optimizer.zero_grad()
    backward(model, 1, rank)
    optimizer.step()
    assert same_everywhere(model)


def half_a_step_is_none():
    """Where a part of the parameters was updated before rank 0 was told, weights differ, and each step says so."""
    import ddl_torch as ddl

    rank, model = ddl.rank(), linear(6, 10, 3)
    optimizer = sgd(model, overlap=True, overlap_update=True)
    train(model, optimizer, 0, rank)
    if rank == 1:
        with pytest.raises(ArithmeticError):
            backward(model, 1, rank, fails=True)
    else:
        assert "ended the backward pass on rank 1" in error_of(train, model, optimizer, 1, rank)
    optimizer.zero_grad()
    assert not same_everywhere(model)
    for _ in range(2):
        assert "(rank 1: 1, rank 0: 2)" in error_of(train, model, optimizer, 2, rank)
        optimizer.zero_grad()


def fail():
    for overlap, drop in itertools.product((False, True), (by_the_optimizer, by_the_model)):
        fails_on_rank_1(drop, overlap=overlap)
        keeps_what_came(overlap=overlap)
    keeps_what_came(elastic=True)
    fails_on_rank_1(by_the_optimizer, overlap=False, overlap_update=True)
    half_a_step_is_none()
    fails_on_rank_1(by_the_optimizer, check=1)
    return True


def test_an_exception_in_one_backward_pass_ends_it_on_all_ranks():
    assert ranks.run(2, fail, env=ONE_THREAD) == [True] * 2


def leaves_out_a_step(model, optimizer, backward):
    """Rank 1 of three drops its averages and takes no step; all find out with their next ones."""
    import ddl_torch as ddl

    rank = ddl.rank()
    for step in range(2):
        backward(model, step, rank)
        if not (rank == 1 and step == 1):
            optimizer.step()
        optimizer.zero_grad() if step % 2 else model.zero_grad()
    for _ in range(2):
        text = error_of(backward, model, 3, rank)
        assert text.startswith(f"[rank {rank}/3 host ") and "] ranks have taken different numbers of steps" in text
        assert "(rank 1: 1, ranks 0, 2: 2)" in text
        optimizer.zero_grad()
    # Weights that are alike again begin a new count.
    ddl.broadcast_parameters(model.state_dict())
    ddl.broadcast_optimizer_state(optimizer)
    backward(model, 4, rank)
    optimizer.step()


def rows_of(model, step, rank):
    model(data(step)[rank : rank + 2]).pow(2).mean().backward()


def sparse_rows_of(model, step, rank):
    model(torch.tensor([rank, step])).sum().backward()


def leave_out():
    for overlap in (False, True):
        model = linear(6, 10, 3)
        try:
            leaves_out_a_step(model, sgd(model, overlap=overlap), rows_of)
        except AssertionError as error:
            raise AssertionError(f"overlap={overlap}") from error
    table = torch.nn.Embedding(9, 2, sparse=True)
    optimizer = sgd(table)
    sparse_rows_of(table, 0, 0)  # from here on there is no bucket
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    table.zero_grad()
    leaves_out_a_step(table, optimizer, sparse_rows_of)
    return True


def test_a_rank_that_leaves_a_step_out_is_found_before_the_next():
    assert ranks.run(3, leave_out, env=ONE_THREAD) == [True] * 3


def goes_on_after_join():
    """Ranks that join have taken fewer steps; afterwards all begin a new count, with the weights of the last one."""
    import ddl_torch as ddl

    ddl.init()  # also opens what named operations go through
    rank, model = ddl.rank(), linear(6, 10, 3)
    optimizer = sgd(model)
    for step in range(3 + rank):
        backward(model, step, rank)
        optimizer.step()
        optimizer.zero_grad()
    assert ddl.join() == 1
    ddl.broadcast_parameters(model.state_dict(), root_rank=1)
    for step in range(2):
        backward(model, step, rank)
        optimizer.step()
        optimizer.zero_grad()
    assert same_everywhere(model)
    return True


def test_ranks_go_on_together_after_join():
    assert ranks.run(2, goes_on_after_join, env=ONE_THREAD) == [True] * 2
