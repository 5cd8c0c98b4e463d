"""The memory of a gradient is taken away from under the bucket, or a gradient is kept while the next one comes.

PyTorch gives a storage other memory when a tensor is put into a queue between processes; ``set_`` and ``.data`` give
one tensor other memory. Averages are then those of one machine, or there is an error; never each rank's own gradients.
"""

from __future__ import annotations

import functools

import pytest
import ranks

torch = pytest.importorskip("torch")
from torch_training import both, data, half, linear, loss_of, sgd  # noqa: E402 (it needs torch, which may not be there)

pytestmark = pytest.mark.processes
PASSES = 2


def through_a_queue(gradient):
    queue = torch.multiprocessing.SimpleQueue()
    queue.put(gradient)
    queue.get()


def to_a_copy(gradient):
    gradient.set_(gradient.clone())


def to_other_data(gradient):
    gradient.data = gradient.clone()


MOVES = [through_a_queue, to_a_copy, to_other_data]


def gradients(model):
    return [p.grad for p in model.parameters() if p.grad is not None]


def moved(when, move, rank, wrap, model):
    """Steps of ``PASSES`` backward passes, gradients of every other step being set to zero and not to None."""
    optimizer = wrap(sgd(model))
    if when == "in a hook":
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: move(p.grad))
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for i in range(PASSES):
            loss_of(model, PASSES * step + i, rank).backward()
            if when == "between passes" and i == 0:
                move(gradients(model)[0])
        if when == "before the step":
            for gradient in gradients(model):
                move(gradient)
        optimizer.step()
        if when == "after the step":
            move(gradients(model)[-1])


def all_moves(when, options):
    for move in MOVES:
        both(functools.partial(moved, when, move), backward_passes_per_step=PASSES, **options)


CASES = [
    (when, options)
    for when in ("in a hook", "between passes", "before the step", "after the step")
    for options in ({}, {"overlap": True}, {"overlap_update": True})
    if not ("overlap_update" in options and when == "before the step")  # there p.grad must not be read
]


@pytest.mark.few(4)
@pytest.mark.parametrize(("when", "options"), CASES, ids=[f"{when} {' '.join(options)}" for when, options in CASES])
def test_averages_are_those_of_one_machine_wherever_gradients_move(when, options):
    ranks.run(2, all_moves, when, options)


def moved_under_way():
    """A gradient is put into a queue, or has other memory, while it is being averaged in the background."""
    import ddl_torch as ddl

    said = []
    for move in MOVES:
        model = linear(6, 10, 3)
        optimizer = ddl.DistributedOptimizer(sgd(model), overlap=True, bucket_bytes=64, tune_allocator=False)
        last, first = list(model.parameters())[-1], next(model.parameters())
        for step in range(3):
            optimizer.zero_grad()
            if step == 2:  # when the first gradient comes, which is the last one, the other buckets have been sent
                first.register_post_accumulate_grad_hook(lambda _, move=move, last=last: move(last.grad))
            try:
                loss_of(model, step, ddl.rank()).backward()
            except ddl.InvalidState as error:
                said.append(str(error))
    return said


def test_a_gradient_that_moves_while_it_is_averaged_is_an_error():
    for said in ranks.run(2, moved_under_way):
        assert len(said) == len(MOVES), said
        assert all("gradients were changed (near parameter 'group 0 parameter 3')" in text for text in said), said


# --- kept within a round ---


def kept_between_passes(drop, rank, wrap, model):
    """The gradients of the first pass are taken apart, as methods for several tasks do, and stay what they were."""
    optimizer = wrap(sgd(model))
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        first = [p.grad for p in model.parameters()]
        copies = [gradient.clone() for gradient in first]
        for p in model.parameters():
            drop(p)
        part = model[:2] if step == 1 else model  # in step 1 the second layer gets no other gradient
        part(half(data(step), rank)).mean().backward()
        for gradient, copy in zip(first, copies):
            assert torch.equal(gradient, copy), "a gradient that is kept stays as it is"
        optimizer.step()


def to_none(parameter):
    parameter.grad = None


def to_zeros(parameter):
    parameter.grad = torch.zeros_like(parameter)


def kept_in_all_ways(options):
    for drop in (to_none, to_zeros):
        both(functools.partial(kept_between_passes, drop), backward_passes_per_step=2, **options)


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"overlap_update": True}], ids=" ".join)
def test_what_is_kept_within_a_round_stays_as_it_is(options):
    ranks.run(2, kept_in_all_ways, options)


def kept_by_a_hook(rank, wrap, model):
    """A hook keeps each gradient, before its average is there, until the end."""
    kept = []
    optimizer = wrap(sgd(model))
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: kept.append(p.grad))
    seen = []
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()
        seen += [(gradient, gradient.clone()) for gradient in kept]
        kept.clear()
        assert all(torch.equal(gradient, copy) for gradient, copy in seen), "what is kept is not written again"


def in_a_closure(rank, wrap, model):
    """Gradients that a closure has kept stay as they are when it is called again."""
    kept = []
    optimizer = wrap(torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3))

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0, rank)
        loss.backward()
        kept.append([(p.grad, p.grad.clone()) for p in model.parameters()])
        return loss

    optimizer.step(closure)
    if rank is not None:
        # The last one that was kept became the average after the closure had ended; earlier ones are left alone.
        for pairs in kept:
            assert len({gradient.data_ptr() for gradient, _ in pairs}) == len(pairs)
    addresses = {gradient.data_ptr() for pairs in kept for gradient, _ in pairs}
    assert len(addresses) == sum(map(len, kept))


def kept_otherwise(options):
    both(kept_by_a_hook, **options)
    both(in_a_closure, **options)


@pytest.mark.parametrize("options", [{}, {"overlap": True}], ids=" ".join)
def test_what_a_hook_or_a_closure_keeps_is_not_written_again(options):
    ranks.run(2, kept_otherwise, options)
