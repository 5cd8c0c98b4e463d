"""What training scripts do with an optimizer: each thing on two ranks against plain PyTorch on the whole batch.

Several things share one start of ranks, because every rank imports torch anew.
"""

from __future__ import annotations

import pytest
import ranks

import ddl

torch = pytest.importorskip("torch")
from torch_training import F64, both, data, half, linear  # noqa: E402 (it needs torch, which may not be there)

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


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


def accumulates_less_later(rank, wrap, model):
    optimizer = wrap(sgd(model), backward_passes_per_step=3)
    for step, passes in enumerate((3, 2, 1)):
        if rank is not None:
            optimizer.set_backward_passes_per_step(passes)
        for micro in range(passes):
            (model(half(data(3 * step + micro), rank)).pow(2).mean() / passes).backward()
        optimizer.step()
        optimizer.zero_grad()


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


def grouped(rank, wrap, model):
    first, last = model[0], model[2]
    lists = [[last.weight, first.weight], [first.bias]]
    for options, expected in (
        ({"groups": lists}, [{"2.bias"}, {"0.bias"}, {"0.weight", "2.weight"}]),
        ({"groups": 1}, [{"0.weight", "0.bias", "2.weight", "2.bias"}]),
        ({"num_groups": 2}, [{"2.weight", "2.bias"}, {"0.weight", "0.bias"}]),
        ({"num_groups": 2, "groups": lists[:1]}, [{"2.bias", "0.bias"}, {"0.weight", "2.weight"}]),
    ):
        options.update(named_parameters=model.named_parameters(), gradient_predivide_factor=2.0)
        optimizer = wrap(sgd(model), **options)
        for step in range(2):
            optimizer.zero_grad()
            model(half(data(step), rank)).pow(2).mean().backward()
            optimizer.step()
        if rank is not None:
            names = [{entry.name for entry in bucket.entries} for bucket in optimizer._ddl._layout.buckets]
            assert names == expected, list(options)  # though the groups are larger than a bucket may be
            assert optimizer._parameter_names == {p: name for name, p in model.named_parameters()}


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


def added_after_backward(rank, wrap, model):
    """A group that is added when averages are there: fine without gradients, else refused; averaged from then on."""
    first, last = model[0], model[2]
    optimizer = wrap(torch.optim.SGD(first.parameters(), lr=0.1))
    for step in range(4):
        optimizer.zero_grad()
        last.zero_grad()
        (first if step == 0 else model)(half(data(step), rank)).pow(2).mean().backward()
        if step == 0:
            optimizer.add_param_group({"params": [last.weight]})
        if step == 2:
            optimizer.add_param_group({"params": [last.bias]})
            if rank is not None:
                before = [p.detach().clone() for p in model.parameters()]
                with pytest.raises(
                    ddl.InvalidState, match="'group 2 parameter 0' was added after the gradients of this"
                ):
                    optimizer.step()
                assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))
            continue
        optimizer.step()


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
        [
            "accumulate",
            "accumulates_less_later",
            "clip",
            "groups",
            "added_after_backward",
            "starts_frozen",
            "thaws_while_accumulating",
        ],
        ["closures", "schedulers", "by_hand", "never_zeroed", "discards", "resumes", "grouped"],
    ],
    ids="+".join,
)
def test_scripts(names):
    ranks.run(2, run_scripts, names, env=ONE_THREAD)


# --- Horovod's other arguments ---


def predivided():
    """By what gradients are divided before they are added up shows where that overflows."""
    import ddl_torch as ddl

    for factor, expected in ((2.0, 400.0), (2.0**-10, float("inf"))):
        parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.float16))
        optimizer = ddl.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), gradient_predivide_factor=factor)
        (parameter * (200 + 200 * ddl.rank())).sum().backward()
        optimizer.synchronize()
        assert torch.equal(parameter.grad, torch.full((3,), expected, dtype=torch.float16))


def by_position():
    import ddl_torch as ddl

    model = linear(6, 3)
    arguments = (model.named_parameters(), ddl.Compression.none, 2, ddl.Sum, 1.0, 0, [[model[0].bias]], True, None)
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), *arguments)
    before = model[0].bias.detach().clone()
    for _ in range(2):
        model[0].bias.sum().backward()
    optimizer.step()
    assert torch.equal(model[0].bias, before - 6)


def in_a_process_set():
    """Ranks 0 and 2 average with one another, rank 1 with nobody."""
    import ddl_torch as ddl

    rank = ddl.rank()
    members = ddl.add_process_set([0, 2])
    model, alone = linear(6, 3), linear(6, 3)
    optimizer = ddl.DistributedOptimizer(sgd(model), process_set=members)
    plain = sgd(alone)
    for step in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        model(data(step) + rank).pow(2).mean().backward()
        (sum(alone(data(step) + other).pow(2).mean() for other in ([1] if rank == 1 else [0, 2]))).backward()
        for p in alone.parameters():
            p.grad /= 1 if rank == 1 else 2
        optimizer.step()
        plain.step()
    for p, q in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(p, q, **F64)
    handle = ddl.sparse_allreduce_async
    own = torch.eye(2).to_sparse()
    if rank == 1:
        with pytest.raises(ddl.InvalidArgument, match="rank 1 is not in ProcessSet"):
            handle(own, "x", ddl.Sum, members)
    else:
        assert torch.equal(handle(own, "x", ddl.Sum, members)().to_dense(), 2 * torch.eye(2))


def run_arguments():
    predivided()
    by_position()
    in_a_process_set()
    return True


@pytest.mark.processes
def test_arguments_of_horovod():
    assert ranks.run(3, run_arguments, env=ONE_THREAD) == [True] * 3
