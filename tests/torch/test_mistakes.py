"""Mistakes in a training script are refused on every rank, with an error that says what to do; nothing is broken."""

from __future__ import annotations

import pytest
import ranks

torch = pytest.importorskip("torch")


OPTIONS = {}  # of every optimizer here


def model_and_optimizer(**options):
    import ddl_torch as ddl

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, ddl.DistributedOptimizer(optimizer, model.named_parameters(), bucket_bytes=64, **OPTIONS, **options)


def backward(model, scale=1.0):
    (scale * model(torch.ones(3, 4)).pow(2).sum()).backward()


def steps_still_work(model, optimizer):
    """The communicator is unharmed, and gradients are averages again."""
    import ddl_torch as ddl

    optimizer.zero_grad()
    backward(model, 1.0 + ddl.rank())
    mean = ddl.allreduce(torch.tensor([1.0 + ddl.rank()])).item()
    optimizer.synchronize()
    averaged = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    backward(model, mean)
    optimizer.synchronize()
    for p, expected in zip(model.parameters(), averaged):
        torch.testing.assert_close(p.grad, expected)
    optimizer.step()


def second_backward():
    import ddl_torch as ddl

    model, optimizer = model_and_optimizer(op=ddl.Sum)
    backward(model)
    with pytest.raises(
        ddl.InvalidState, match=r"'1.bias' got a gradient in another backward.*backward_passes_per_step"
    ):
        backward(model)
    optimizer.zero_grad()
    steps_still_work(*model_and_optimizer())
    # Averages may be averaged again, with what has come since.
    layer = torch.nn.Linear(8, 2)
    layer.extra = torch.nn.Parameter(torch.ones(2))
    waiting = ddl.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), **OPTIONS)
    for _ in range(2):
        layer(torch.full((1, 8), 1.0 + ddl.rank())).sum().backward()
    waiting.step()
    assert torch.equal(layer.weight.grad, torch.full((2, 8), 3.0))
    assert layer.extra.grad is None


def changed_under_way():
    import ddl_torch as ddl

    model, optimizer = model_and_optimizer()
    if not OPTIONS["overlap"]:
        return  # nothing is under way while the backward pass runs
    for change in (
        lambda: model[1].bias.grad.mul_(2),
        lambda: setattr(model[1].bias, "grad", torch.zeros(2)),
    ):
        backward(model)
        optimizer.zero_grad()
        hook = model[0].weight.register_hook(lambda _, change=change: [change(), None][1])
        with pytest.raises(ddl.InvalidState, match="changed .near parameter '1.bias'. while they were being averaged"):
            backward(model)
        hook.remove()
        steps_still_work(model, optimizer)


def sparse_here_dense_there():
    import ddl_torch as ddl

    table = torch.nn.Embedding(5, 3, sparse=ddl.rank() == 0)
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), **OPTIONS)
    for _ in range(2):  # when it is found out, and when it is known
        optimizer.zero_grad()
        with pytest.raises(ddl.InvalidState, match=r"rank ./2.*'group 0 parameter 0'.*sparse_as_dense=True"):
            table(torch.tensor([1, 2])).sum().backward()
    steps_still_work(*model_and_optimizer())


def averaged_twice():
    model, optimizer = model_and_optimizer()
    backward(model)
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="averaged once more"):
        optimizer.synchronize()
    steps_still_work(model, optimizer)


def converted_later():
    import ddl_torch as ddl

    model, optimizer = model_and_optimizer()
    model.double()
    with pytest.raises(ddl.InvalidState, match="convert it before"):
        model(torch.ones(3, 4, dtype=torch.float64)).sum().backward()


def different_models():
    import ddl_torch as ddl

    model = torch.nn.Linear(3, 4 + ddl.rank())
    with pytest.raises(
        ddl.InvalidArgument, match=r"rank 0 there is parameter 'weight'.*\(4, 3\).*rank 1 parameter.*\(5, 3\)"
    ):
        ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    with pytest.raises(ddl.InvalidArgument, match="op=Average.*op=Sum"):
        model_and_optimizer(op=ddl.Average if ddl.rank() == 0 else ddl.Sum)
    for option, other in (("check", 7), ("overlap", None), ("sparse_as_dense", True)):
        kept = dict(OPTIONS)
        if ddl.rank() == 0:
            OPTIONS[option] = other
        with pytest.raises(ddl.InvalidArgument, match=f"{option}={other}.*{option}="):
            model_and_optimizer()
        OPTIONS.clear()
        OPTIONS.update(kept)
    OPTIONS.clear()
    with pytest.raises(ddl.InvalidArgument, match=r"groups=\[0, 0, 1, 1\]; on rank 1 groups=\[0, 1, 2, 3\]"):
        model_and_optimizer(groups=2 + 2 * ddl.rank())
    steps_still_work(*model_and_optimizer())


def run_mistakes(overlap, check):
    OPTIONS.update(overlap=overlap, check=check)
    for mistake in (
        *(second_backward, changed_under_way, sparse_here_dense_there, averaged_twice),
        *(converted_later, different_models),
    ):
        mistake()
    return True


@pytest.mark.processes
@pytest.mark.parametrize(("overlap", "check"), [(True, 0), (False, 0), (True, 1)])
def test_mistakes_in_a_script(overlap, check):
    assert ranks.run(2, run_mistakes, overlap, check, env={"OMP_NUM_THREADS": "1"}) == [True, True]


def wrong_arguments():
    import ddl_torch as ddl

    weight, bias = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(2))
    meta = torch.nn.Parameter(torch.ones(2, device="meta"))
    sgd = torch.optim.SGD([weight, bias], lr=0.1)
    return [
        (sgd, {"named_parameters": [("a", weight), ("a", bias)]}, "'a' twice"),
        (sgd, {"named_parameters": [("a", bias)]}, r"lacks 1 .*group 0 parameter 0 of shape \(2, 3\)"),
        (sgd, {"named_parameters": [weight, bias]}, "pass model.named_parameters"),
        (sgd, {"op": ddl.Max}, "ddl.Average, ddl.Sum and ddl.Adasum"),
        (sgd, {"op": 3}, "op=3 is no operator"),
        (sgd, {"backward_passes_per_step": 0}, "must be 1 or more"),
        (sgd, {"check": -1}, "check=-1"),
        (sgd, {"bucket_bytes": 0}, "bucket_bytes=0"),
        ("adam", {}, "not a str"),
        (sgd, {"op": ddl.Sum, "gradient_predivide_factor": 2.0}, "needs op=ddl.Average"),
        (sgd, {"gradient_predivide_factor": 0.0}, "above 0"),
        (sgd, {"op": ddl.Adasum, "check": 1}, "there are none"),
        (sgd, {"groups": -1}, "groups=-1"),
        (sgd, {"num_groups": -2}, "groups=-2"),
        (sgd, {"groups": [[weight], ["bias"]]}, "number 1 has a .*str"),
        (sgd, {"groups": [[weight], [bias, weight]]}, "groups 0 and 1 have the same"),
        (sgd, {"process_set": ddl, "communicator": ddl.world()}, "give one"),
        (torch.optim.SGD([meta], lr=0.1), {}, "is on meta"),
        (torch.optim.SGD([torch.nn.UninitializedParameter()], lr=0.1), {}, "no shape yet"),
        (torch.optim.SGD([torch.nn.Parameter(torch.ones(2).to(torch.float8_e5m2))], lr=0.1), {}, "float8_e5m2"),
    ]


def alone_in_the_job():
    import ddl_torch as ddl

    for optimizer, options, message in wrong_arguments():
        with pytest.raises(ddl.InvalidArgument, match=message):
            ddl.DistributedOptimizer(optimizer, **options)
        assert not isinstance(optimizer, ddl.DistributedOptimizer)  # untouched
    model, optimizer = model_and_optimizer()
    with pytest.raises(ddl.InvalidArgument, match="not distributed yet"):
        ddl.DistributedOptimizer(optimizer)
    with pytest.raises(ddl.InvalidArgument, match="is on meta"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, device="meta"))]})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ddl.InvalidState, match="save optimizer.state_dict"):
        torch.save(optimizer, "never-written")
    backward(model)
    optimizer.step()
    return True


@pytest.mark.processes
def test_wrong_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ranks.run(1, alone_in_the_job) == [True]
