"""What scripts do with ``p.grad`` between ``backward()`` and ``step()``: it is the average, as on one machine.

An AMP scaler looks for infinity and unscales, a script clips, keeps gradients for later, penalises them. Each is done
on two ranks with the lines of one, with and without averaging in the background, and compared with the whole batch.
"""

from __future__ import annotations

import functools

import pytest
import ranks

torch = pytest.importorskip("torch")
from torch_training import (  # noqa: E402 (it needs torch, which may not be there)
    SCALERS,
    Fails,
    both,
    data,
    half,
    linear,
    loss_of,
    scaler_of,
    sgd,
)

pytestmark = pytest.mark.processes
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


# --- an AMP scaler ---


def amp(rank, wrap, model, clip):
    """The loop of PyTorch's documents. In step 2 a gradient overflows, for rows that only rank 1 has."""
    optimizer, scaler = wrap(sgd(model)), scaler_of()
    for step in range(6):
        optimizer.zero_grad()
        weights = torch.ones(8, 1, dtype=torch.float64)
        weights[-1] = 1e200 if step == 2 else 1.0
        before = [p.detach().clone() for p in model.parameters()]
        loss = (model(half(data(step), rank)) * half(weights, rank)).pow(2).mean()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        moved = any(not torch.equal(p, q) for p, q in zip(model.parameters(), before))
        assert moved == (step != 2), step
    assert scaler.get_scale() == 2.0**11  # up after steps 0 and 1, down after 2, up after 3 and 4


def edits_data(rank, wrap, model):
    """``p.grad.data`` has another version than ``p.grad``, so PyTorch does not notice."""
    optimizer = wrap(sgd(model))
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        for p in model.parameters():
            p.grad.data.clamp_(-1e-3, 1e-3)
        optimizer.step()


def clips_unasked(rank, wrap, model):
    optimizer = wrap(sgd(model))
    for step in range(4):
        optimizer.zero_grad()
        (100 * loss_of(model, step, rank)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


# --- several backward passes, and gradients that are kept ---


def two_passes(rank, wrap, model):
    """Each pass ends with averages, on top of those of the pass before."""
    optimizer = wrap(sgd(model))
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, 2 * step, rank).backward()
        loss_of(model, 2 * step + 1, rank).backward()
        optimizer.step()


def disjoint_passes(rank, wrap, model):
    optimizer = wrap(sgd(model))
    for step in range(3):
        optimizer.zero_grad()
        model[0](half(data(step), rank)).pow(2).mean().backward()
        model[2](torch.ones(1, 10, dtype=torch.float64) * half(data(step), rank).mean()).sum().backward()
        optimizer.step()


def combines_tasks(rank, wrap, model):
    optimizer = wrap(sgd(model))
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        first = [p.grad for p in model.parameters()]
        for p in model.parameters():
            p.grad = None
        model(half(data(step), rank)).mean().backward()
        for p, grad in zip(model.parameters(), first):
            p.grad = p.grad + grad
        optimizer.step()


def svrg(rank, wrap, model):
    """Keeps the gradients of a step, and what shares their memory, for later ones."""
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
    kept = views = None
    for step in range(7):
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        if step % 3 == 0:
            kept = [p.grad for p in model.parameters()]
            views = [p.grad.detach().reshape(-1)[:2] for p in model.parameters()]
            arrays = [p.grad.numpy() for p in model.parameters()]
            copies = [grad.clone() for grad in kept]
        else:
            for p, grad in zip(model.parameters(), kept):
                p.grad = p.grad - 0.5 * grad
        optimizer.step()
        for grad, view, array, copy in zip(kept, views, arrays, copies):
            assert torch.equal(grad, copy), "a gradient that is kept stays as it is"
            assert torch.equal(view, copy.reshape(-1)[:2])
            assert torch.equal(torch.from_numpy(array), copy)


# --- hooks, graphs of gradients, checkpoints ---


def _treble(parameter):
    parameter.grad.mul_(3)


def hooks(rank, wrap, model):
    """A hook that is registered after wrapping edits the gradient that the rank has."""
    optimizer = wrap(sgd(model)) if rank is not None else sgd(model)
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(_treble)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()


def penalises(rank, wrap, model):
    """A penalty on the gradient of the whole batch, by a graph of the gradients."""
    optimizer = wrap(sgd(model))
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step, rank).backward(create_graph=True)
        sum(p.grad.pow(2).sum() for p in model.parameters()).backward()
        optimizer.step()
        for p in model.parameters():
            p.grad = None  # breaks the cycle of PyTorch's warning


def reentrant(rank, wrap, model):
    """A layer that is used twice, in checkpoints that run backward passes of their own."""
    from torch.utils.checkpoint import checkpoint

    def reused(x):
        return torch.tanh(x @ model[0].weight.t() @ model[0].weight)

    optimizer = wrap(sgd(model), bucket_bytes=64)
    for step in range(3):
        optimizer.zero_grad()
        x = half(data(step), rank).requires_grad_()
        for _ in range(2):
            x = checkpoint(reused, x, use_reentrant=True)
        y = checkpoint(model, x, use_reentrant=True)
        (y.pow(2).mean() + model[2].bias.sum() * step).backward()
        optimizer.step()


def catches(rank, wrap, model):
    """An exception on all ranks alike leaves a batch out."""
    optimizer = wrap(sgd(model))
    for step in range(5):
        optimizer.zero_grad()
        x = half(data(step), rank)
        loss = model[2](torch.tanh(Fails.apply(model[0](x), step == 2))).pow(2).mean()
        try:
            loss.backward()
        except ArithmeticError:
            continue
        optimizer.step()


def closures(rank, wrap, model):
    """A closure clips what its backward pass has left, or runs two passes."""
    optimizer = wrap(sgd(model))
    for step in range(4):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, step, rank)
            loss.backward()
            if step % 2:
                loss_of(model, step + 10, rank).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            return loss

        optimizer.step(closure)


def sharpness(rank, wrap, model):
    """SAM: the gradient at the weights moves them uphill, and the gradient there is what the step takes."""
    optimizer = wrap(sgd(model))
    for step in range(3):
        loss_of(model, step, rank).backward()
        before = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            norm = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).norm()
            for p in model.parameters():
                p += 0.05 * p.grad / norm
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        with torch.no_grad():
            for p, weight in zip(model.parameters(), before):
                p.copy_(weight)
        optimizer.step()
        optimizer.zero_grad()


def adversaries(rank, wrap, model):
    """A GAN: each of two optimizers takes its steps, and a pass for one leaves gradients in the other's model."""
    critic = linear(3, 4, 1)
    for_model, for_critic = wrap(sgd(model)), wrap(sgd(critic))
    for step in range(4):
        x = half(data(step), rank)
        for_critic.zero_grad()
        (critic(model(x).detach()).mean() - critic(x[:, :3]).mean()).backward()
        for_critic.step()
        for_model.zero_grad()
        (-critic(model(x)).mean()).backward()
        for_model.step()
    with torch.no_grad():  # so that the comparison sees the critic, too
        model[0].weight.view(-1)[: critic[0].weight.numel()].add_(critic[0].weight.view(-1))


SCRIPTS = {
    **({"amp": functools.partial(amp, clip=False), "clip": functools.partial(amp, clip=True)} if SCALERS else {}),
    **{
        script.__name__: script
        for script in (
            *(edits_data, clips_unasked, two_passes, disjoint_passes, combines_tasks, svrg),
            *(hooks, penalises, reentrant, catches, closures, sharpness, adversaries),
        )
    },
}


def run_scripts():
    import warnings

    warnings.filterwarnings("ignore", "Using backward.. with create_graph=True")
    for overlap in (False, True):
        for name, script in SCRIPTS.items():
            try:
                both(script, overlap=overlap)
            except Exception as error:
                raise AssertionError(f"script {name}, overlap={overlap}") from error
    return True


@pytest.mark.slow
def test_gradients_are_those_of_the_whole_batch_as_soon_as_backward_ends():
    assert ranks.run(2, run_scripts, env=ONE_THREAD) == [True] * 2


def compiled(rank, wrap, model):
    """Compiled autograd traces what runs in a backward pass, hooks too."""
    optimizer = wrap(sgd(model))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step, rank).backward()
            optimizer.step()


def run_compiled():
    for overlap in (False, True):
        both(compiled, overlap=overlap)
    return True


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch._dynamo, "compiled_autograd"), reason="this torch has no compiled autograd")
def test_compiled_autograd():
    assert ranks.run(2, run_compiled, env=ONE_THREAD) == [True] * 2


# --- what cannot be so ---


def several_optimizers():
    """One backward pass that reaches several optimizers serves them in the same order on all ranks."""
    import ddl_torch as ddl

    first, second = linear(6, 3), linear(6, 3)
    optimizers = [ddl.DistributedOptimizer(sgd(model), overlap=False) for model in (first, second)]
    x = data(ddl.rank())
    for _ in range(3):
        parts = [first(x).pow(2).mean(), second(x).pow(2).mean()]
        # The gradients of the two come in the order in which they were made.
        (sum(parts) if ddl.rank() else sum(reversed([second(x).pow(2).mean(), first(x).pow(2).mean()]))).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    weights = torch.cat([p.detach().reshape(-1) for p in (*first.parameters(), *second.parameters())])
    assert torch.equal(*ddl.allgather(weights.unsqueeze(0)))
    return True


def sums_cannot_be_summed_again():
    import ddl_torch as ddl

    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), op=ddl.Sum)
    optimizer.zero_grad()
    parameter.sum().backward()
    with pytest.raises(ddl.InvalidState, match="on top of a sum over the ranks.*backward_passes_per_step"):
        parameter.sum().backward()
    optimizer.zero_grad()
    parameter.sum().backward()
    optimizer.step()
    assert parameter.tolist() == [-2.0] * 3
    return True


def run_what_differs():
    return several_optimizers() and sums_cannot_be_summed_again()


def test_several_optimizers_and_sums():
    assert ranks.run(2, run_what_differs, env=ONE_THREAD) == [True] * 2
