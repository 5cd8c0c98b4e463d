"""Parameters and optimizer state go from one rank to all, bit by bit, for every optimizer of torch."""

from __future__ import annotations

import inspect

import pytest
import ranks

torch = pytest.importorskip("torch")
import torch_optimizers  # noqa: E402 (it needs torch, which may not be there)


class Nested(torch.optim.SGD):
    """An optimizer of somebody's own, which keeps all kinds of plain data beside tensors."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            kept = state.setdefault("kept", {"count": 0, "last": None, "seen": [], (1, "key"): (True, 0.5)})
            p.mul_(1 - 0.01 * kept["count"])
            if kept["last"] is not None:
                p.add_(kept["last"][0], alpha=0.1 * kept["last"][1])
            kept["count"] += 1
            kept["last"] = (p.clone(), -0.5)
            kept["seen"].append(torch.tensor(kept["count"], dtype=torch.int16))
        return loss


def make(name, parameter, rank):
    kind = torch_optimizers.classes().get(name, Nested)
    settings = {"lr": 0.01, **torch_optimizers.SETTINGS.get(name, {})}
    return kind([parameter], **{**settings, "lr": settings["lr"] * (1 + rank)})


def trained(name, rank, steps, dtype):
    """A parameter and its optimizer after so many steps on the rank's own values and settings."""
    torch.manual_seed(rank)
    parameter = torch.nn.Parameter(torch.randn(4, 3, dtype=dtype))
    optimizer = make(name, parameter, rank)
    for _ in range(steps):
        step(parameter, optimizer, name)
    return parameter, optimizer


def step(parameter, optimizer, name):
    def closure():
        parameter.grad = (2 * parameter).detach()
        if name in torch_optimizers.SPARSE:
            parameter.grad = parameter.grad.to_sparse()
        return parameter.detach().pow(2).sum()

    optimizer.step(closure)


def flat(value):
    """Everything in a state dictionary, as text, tensors to the bit."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{flat(element)}" for key, element in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return type(value).__name__ + ",".join(flat(element) for element in value)
    return repr(value)


def every_optimizer():
    """The ranks have taken different numbers of steps; from then on all go on as the root would have alone."""
    import ddl_torch as ddl

    seen = []
    for name in (*torch_optimizers.classes(), "Nested"):
        for dtype in (torch.float32, torch.float64):
            for root, steps in ((0, (3, 0)), (0, (2, 4)), (1, (3, 0))):
                parameter, optimizer = trained(name, ddl.rank(), steps[ddl.rank()], dtype)
                ddl.broadcast_parameters([("p", parameter)], root_rank=root)
                ddl.broadcast_optimizer_state(optimizer, root_rank=root)
                alone, uninterrupted = trained(name, root, steps[root], dtype)
                assert flat(optimizer.state_dict()) == flat(uninterrupted.state_dict()), name
                for _ in range(3):
                    step(parameter, optimizer, name)
                    step(alone, uninterrupted, name)
                    assert torch.equal(parameter, alone), f"{name} {dtype} from rank {root}"
                assert flat(optimizer.state_dict()) == flat(uninterrupted.state_dict()), name
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
    ddl.broadcast_parameters(model.state_dict(), root_rank=1)
    texts = ddl.allgather_object([flat(tensor) for tensor in model.state_dict().values()])
    assert texts[0] == texts[1] and len(texts[0]) > 8

    with pytest.raises(
        ddl.InvalidArgument,
        match=r"\[rank ./2 host \S+\] .*on rank 0 there is 'bias'.*\(2,\); on rank 1 'bias'.*\(3,\)",
    ):
        layer = {"weight": torch.ones(2, 2), "bias": torch.ones(2 + ddl.rank())}
        ddl.broadcast_parameters(layer)


def refused_on_all_ranks():
    """What only one rank can see to be wrong, and what ranks do differently: the same error everywhere, at once."""
    import ddl_torch as ddl

    odd = ddl.rank() == 1
    dense, layer = torch.ones(2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for call, message in (
        (lambda: ddl.broadcast_parameters({"w": dense.to_sparse() if odd else dense}), "'w' is no dense.*sparse_coo"),
        (lambda: ddl.broadcast_parameters(5 if odd else {"w": dense}), r"params is a int; pass model.state_dict\(\)"),
        (lambda: ddl.broadcast_parameters(torch.nn.Sequential(layer) if odd else {}), "params is a Sequential; pass"),
        (lambda: ddl.broadcast_parameters([("w", dense, 1)] if odd else [("w", dense)]), "params has a tuple that is"),
        (lambda: ddl.broadcast_parameters([dense], 2 if odd else 0), "root_rank=2 is no rank of a communicator of 2"),
        (
            lambda: ddl.broadcast_optimizer_state(optimizer, 0, torch.nn.Linear(2, 2) if odd else layer),
            r"the model lacks 2 .*\(2, 2\)",
        ),
    ):
        with pytest.raises(
            ddl.InvalidArgument, match=rf"\[rank {ddl.rank()}/2 host \S+\] broadcast_\w+: on rank 1, {message}"
        ):
            call()
    for call, message in (
        (lambda: ddl.broadcast_parameters([dense], int(odd)), "root_rank=0; on rank 1 root_rank=1"),
        (lambda: ddl.broadcast_optimizer_state(optimizer, allow_pickle=odd), "=False; on rank 1 allow_pickle=True"),
        (lambda: ddl.broadcast_parameters([dense] * (1 + odd)), "there is nothing; on rank 1 'number 1'"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=message):
            call()


def what_is_given():
    """State dictionaries with more than tensors in them, parameters without names, the optimizer's model."""
    import ddl_torch as ddl

    rank = ddl.rank()
    state = {"weight": torch.full((2,), 1.0 + rank), "extra": 3 + rank, "none": None}
    ddl.broadcast_parameters(state, 1)
    assert torch.equal(state["weight"], torch.full((2,), 2.0)) and state["extra"] == 3 + rank
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, rank)
    ddl.broadcast_parameters(model.parameters(), root_rank=1)
    assert (model.weight == 1).all()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 + rank)
    ddl.broadcast_optimizer_state(optimizer, 1, model)
    assert optimizer.param_groups[0]["lr"] == 2.0


def unusual_settings():
    import ddl_torch as ddl

    optimizer = torch.optim.SGD([{"params": [torch.ones(2)], "lr": 0.1, "tag": {1: (2, None)}}], lr=1.0)
    optimizer.param_groups[0]["note"] = frozenset([ddl.rank()])
    ddl.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0]["note"] == {1} and optimizer.param_groups[0]["tag"] == {1: (2, None)}
    optimizer.param_groups[0]["note"] = inspect
    with pytest.raises(ddl.InvalidArgument, match="rank 1: .*allow_pickle"):
        ddl.broadcast_optimizer_state(optimizer, root_rank=1)
    optimizer.param_groups[0]["note"] = torch.device("cpu")
    ddl.broadcast_optimizer_state(optimizer, root_rank=1, allow_pickle=True)
    assert optimizer.param_groups[0]["note"] == torch.device("cpu")


def run_state():
    parameters()
    refused_on_all_ranks()
    what_is_given()
    unusual_settings()
    return every_optimizer()


@pytest.mark.processes
def test_state_goes_to_every_rank():
    seen = ranks.run(2, run_state, env={"OMP_NUM_THREADS": "1"})
    assert seen == [[*torch_optimizers.classes(), "Nested"]] * 2
    assert {"SGD", "Adam", "AdamW", "LBFGS", "SparseAdam", "Rprop"} <= set(seen[0])
