"""Parameters and optimizer state go from one rank to all, bit by bit, for every optimizer of torch."""

from __future__ import annotations

import inspect

import pytest
import ranks

torch = pytest.importorskip("torch")

NEEDS = {"LBFGS": {"history_size": 3, "max_iter": 2}, "SGD": {"lr": 0.1, "momentum": 0.9}}


def optimizer_classes():
    found = {name: kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
    return {
        name: kind for name, kind in found.items() if issubclass(kind, torch.optim.Optimizer) and name != "Optimizer"
    }


def trained(kind, name, rank, dtype):
    """A parameter and its optimizer after as many steps as the rank says, on data of its own."""
    torch.manual_seed(rank)
    parameter = torch.nn.Parameter(torch.randn(4, 3, dtype=dtype))
    optimizer = kind([parameter], **NEEDS.get(name, {"lr": 0.01 * (1 + rank)}))
    for _ in range(2 * rank):
        step(parameter, optimizer, sparse=name == "SparseAdam")
    return parameter, optimizer


def step(parameter, optimizer, sparse):
    def closure():
        parameter.grad = (2 * parameter).detach()
        if sparse:
            parameter.grad = parameter.grad.to_sparse()
        return parameter.detach().pow(2).sum()

    optimizer.step(closure)


def flat(value):
    """Everything in a state dictionary, as text, tensors to the bit."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{flat(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return type(value).__name__ + ",".join(flat(one) for one in value)
    return repr(value)


def every_optimizer():
    import ddl_torch as ddl

    seen = []
    for name, kind in optimizer_classes().items():
        for dtype in (torch.float32, torch.float64):
            if name == "Muon" and dtype == torch.float64:
                continue  # computes in bfloat16
            for root in (1, 0):  # rank 0 has no state yet
                parameter, optimizer = trained(kind, name, ddl.rank(), dtype)
                ddl.broadcast_parameters([("p", parameter)], root=root)
                ddl.broadcast_optimizer_state(optimizer, root=root)
                texts = ddl.allgather_object(flat(optimizer.state_dict()))
                assert texts[0] == texts[1], name
                assert len(optimizer.state) == (root == 1 or name == "Adagrad"), name
                step(parameter, optimizer, sparse=name == "SparseAdam")
                assert torch.equal(*ddl.allgather(parameter.detach().unsqueeze(0))), name
        seen.append(name)
    return seen


def parameters():
    import ddl_torch as ddl

    torch.manual_seed(ddl.rank())
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(3, 3, dtype=torch.bfloat16)
    ).to(memory_format=torch.channels_last)
    model.register_buffer("phase", torch.randn(3, dtype=torch.complex64))
    model[:2](torch.randn(2, 3, 5, 5))  # moves the running statistics
    ddl.broadcast_parameters(model.state_dict(), root=1)
    texts = ddl.allgather_object([flat(tensor) for tensor in model.state_dict().values()])
    assert texts[0] == texts[1] and len(texts[0]) > 8

    with pytest.raises(
        ddl.InvalidArgument, match=r"entry 1 is 'bias'.*\(2,\).* on rank 0 but 'bias'.*\(3,\).* on rank 1"
    ):
        layer = {"weight": torch.ones(2, 2), "bias": torch.ones(2 + ddl.rank())}
        ddl.broadcast_parameters(layer)
    with pytest.raises(ddl.InvalidArgument, match="'extra' is no dense tensor"):
        ddl.broadcast_parameters({"extra": 3})


def unusual_settings():
    import ddl_torch as ddl

    optimizer = torch.optim.SGD([{"params": [torch.ones(2)], "lr": 0.1, "tag": {1: (2, None)}}], lr=1.0)
    optimizer.param_groups[0]["note"] = frozenset([ddl.rank()])
    ddl.broadcast_optimizer_state(optimizer, root=1)
    assert optimizer.param_groups[0]["note"] == {1} and optimizer.param_groups[0]["tag"] == {1: (2, None)}
    optimizer.param_groups[0]["note"] = inspect
    with pytest.raises(ddl.InvalidArgument, match="rank 1: .*allow_pickle"):
        ddl.broadcast_optimizer_state(optimizer, root=1)
    optimizer.param_groups[0]["note"] = torch.device("cpu")
    ddl.broadcast_optimizer_state(optimizer, root=1, allow_pickle=True)
    assert optimizer.param_groups[0]["note"] == torch.device("cpu")


def run_state():
    parameters()
    unusual_settings()
    return every_optimizer()


@pytest.mark.processes
def test_state_goes_to_every_rank():
    seen = ranks.run(2, run_state, env={"OMP_NUM_THREADS": "1"})
    assert seen[0] == seen[1]
    assert {"SGD", "Adam", "AdamW", "LBFGS", "SparseAdam", "Adafactor", "Rprop"} <= set(seen[0])
