"""What training scripts do with an optimizer: each thing on two ranks against plain PyTorch on the whole batch.

Several things share one start of ranks, because every rank imports torch anew.
"""

from __future__ import annotations

import pytest
import ranks

torch = pytest.importorskip("torch")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
F64 = {"rtol": 1e-12, "atol": 1e-14}


def linear(*sizes, dtype=None):
    torch.manual_seed(3)
    layers = []
    for n, m in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(n, m), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers).to(dtype or torch.float64)


def data(step, rows=8, columns=6):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def half(x, rank):
    """The rows of ``x`` that belong to ``rank`` of two; rank None: all."""
    return x if rank is None else x[rank * len(x) // 2 : (rank + 1) * len(x) // 2]


def check(model, alone):
    """The distributed model equals the plain one, and is the same on both ranks to the bit."""
    import ddl_torch as ddl

    mine = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(mine, torch.cat([p.detach().reshape(-1) for p in alone.parameters()]), **F64)
    assert torch.equal(*ddl.allgather(mine.unsqueeze(0)))


def both(script):
    """Run ``script(rank, wrap, model)`` plainly and distributed, on equal models, and compare the models."""
    import ddl_torch as ddl

    def wrap(optimizer, **options):
        return ddl.DistributedOptimizer(optimizer, tune_allocator=False, bucket_bytes=512, **options)

    alone, model = linear(6, 10, 3), linear(6, 10, 3)
    script(None, lambda optimizer, **_: optimizer, alone)
    script(ddl.rank(), wrap, model)
    check(model, alone)


# --- scripts: the same lines serve both ways of training ---


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, **options)


def accumulate(rank, wrap, model):
    optimizer = wrap(sgd(model), backward_passes_per_step=3)
    for step in range(4):
        for micro in range(3):
            (model(half(data(3 * step + micro), rank)).pow(2).mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    (model(half(data(99), rank)).pow(2).mean()).backward()  # the epoch ends before the third pass
    optimizer.step()


def clip(rank, wrap, model):
    optimizer = wrap(sgd(model))
    for step in range(4):
        optimizer.zero_grad()
        (100 * model(half(data(step), rank)).pow(2).mean()).backward()
        if rank is not None:
            optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if rank is not None and step % 2:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    if rank is not None:
        assert optimizer.statistics()["steps"] == 4


def groups(rank, wrap, model):
    first, last = model[0], model[2]
    optimizer = wrap(torch.optim.AdamW([{"params": first.parameters(), "lr": 0.01}, {"params": [last.weight]}], lr=0.1))
    for step in range(6):
        if step == 2:
            optimizer.add_param_group({"params": [last.bias], "lr": 0.5})
        if step == 3:
            first.weight.requires_grad_(False)
            first.bias.requires_grad_(False)
        if step == 5:
            first.weight.requires_grad_(True)
        model.zero_grad()
        model(half(data(step), rank)).pow(2).mean().backward()
        optimizer.step()
        frozen = step in (3, 4)
        assert (first.weight.grad is None) == frozen


def starts_frozen(rank, wrap, model):
    model[0].requires_grad_(False)
    optimizer = wrap(sgd(model))
    for step in range(4):
        model[0].requires_grad_(step > 1)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        model(half(data(step), rank)).pow(2).mean().backward()
        optimizer.step()


def thaws_while_accumulating(rank, wrap, model):
    optimizer = wrap(sgd(model), backward_passes_per_step=2)
    for step in range(3):
        for micro in range(2):
            model[0].requires_grad_(micro == 1)
            model(half(data(2 * step + micro), rank)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def closures(rank, wrap, model):
    for make in (
        lambda: sgd(model),
        lambda: torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe"),
    ):
        optimizer = wrap(make())
        for step in range(3):

            def closure(step=step, optimizer=optimizer):
                optimizer.zero_grad()
                loss = model(half(data(step), rank)).pow(2).mean()
                loss.backward()
                return loss

            before = model(data(step)).pow(2).mean()
            loss = optimizer.step(closure=closure) if step else optimizer.step(closure)
            torch.testing.assert_close(loss.detach(), before.detach(), **F64)  # of the whole batch


def schedulers(rank, wrap, model):
    plain = sgd(model)
    before = torch.optim.lr_scheduler.StepLR(plain, 2, gamma=0.5)
    optimizer = wrap(plain)
    assert optimizer is plain and isinstance(optimizer, torch.optim.SGD)
    after = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for step in range(5):
        optimizer.zero_grad()
        model(half(data(step), rank)).pow(2).mean().backward()
        optimizer.step()
        before.step()
        after.step()


def by_hand(rank, wrap, model):
    optimizer = wrap(sgd(model))
    for step in range(3):  # without any backward pass
        for i, p in enumerate(model.parameters()):
            own = torch.arange(p.numel(), dtype=p.dtype).view(p.shape) + i + step
            p.grad = own + (0 if rank is None else 2 * rank - 1)
        optimizer.step()
    optimizer.zero_grad()
    model(half(data(5), rank)).pow(2).mean().backward()
    if rank is not None:
        optimizer.synchronize()
    for p in model.parameters():
        p.grad = p.grad.clamp(-0.01, 0.01)
    optimizer.step()


def never_zeroed(rank, wrap, model):
    optimizer = wrap(sgd(model))
    for step in range(4):
        model(half(data(step), rank)).pow(2).mean().backward()
        optimizer.step()


def discards(rank, wrap, model):
    optimizer = wrap(sgd(model))
    for step in range(6):
        model(half(data(step), rank)).pow(2).mean().backward()
        if step % 2:
            optimizer.step()
        optimizer.zero_grad(set_to_none=step % 3 == 0)  # every other time, what was being averaged


def resumes(rank, wrap, model):
    state = None
    for step in range(4):  # every step with a new optimizer that continues the last one's state
        optimizer = wrap(torch.optim.Adam(model.parameters(), lr=0.05))
        if state is not None:
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        model(half(data(step), rank)).pow(2).mean().backward()
        optimizer.step()
        state = optimizer.state_dict()
        assert set(state) == {"state", "param_groups"}


def run_scripts(names):
    for name in names:
        try:
            both(globals()[name])
        except Exception as error:
            raise AssertionError(f"script {name}") from error


@pytest.mark.processes
@pytest.mark.parametrize(
    "names",
    [
        ["accumulate", "clip", "groups", "starts_frozen", "thaws_while_accumulating"],
        ["closures", "schedulers", "by_hand", "never_zeroed", "discards", "resumes"],
    ],
    ids="+".join,
)
def test_scripts(names):
    ranks.run(2, run_scripts, names, env=ONE_THREAD)
