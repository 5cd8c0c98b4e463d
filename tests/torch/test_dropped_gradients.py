"""``zero_grad()`` without ``step()``: a dropped gradient moves no weight, and a rank that drops alone is found out."""

from __future__ import annotations

import itertools

import pytest
import ranks
from core.jobs import connected

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.processes


def moved(method, overlap, synchronized):
    """How far a dropped gradient has moved the weights, by a gradient of zero after it."""
    import ddl_torch as ddl

    parameter = torch.nn.Parameter(torch.zeros(160, 300))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer = ddl.DistributedOptimizer(optimizer, compression=method, overlap=overlap)
    (parameter * torch.randn(160, 300, generator=torch.Generator().manual_seed(ddl.rank()))).sum().backward()
    if synchronized:
        optimizer.synchronize()
    optimizer.zero_grad()
    for _ in range(2):
        (parameter * 0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameter.abs().max().item()


def still_kept(method):
    """What is left over of gradients that a closure returns is sent: their mean comes closer to the gradient."""
    import ddl_torch as ddl

    gradient = torch.randn(160, 300, generator=torch.Generator().manual_seed(7))
    parameter = torch.nn.Parameter(torch.zeros(160, 300))
    optimizer = ddl.DistributedOptimizer(torch.optim.LBFGS([parameter]), compression=method)
    off = []
    total = torch.zeros(160, 300)

    def evaluate():
        optimizer.zero_grad()
        loss = (parameter * gradient).sum()
        loss.backward()
        optimizer.synchronize()
        total.add_(parameter.grad)
        off.append(((total / (len(off) + 1) - gradient).norm() / gradient.norm()).item())
        return loss

    optimizer.step(evaluate)
    return off[-1] / off[0]


def compressed():
    torch.set_num_threads(1)
    cases = itertools.product(("int8", "powersgd"), (False, True), (False, True))
    return [moved(*case) for case in cases], [still_kept(method) for method in ("int8", "powersgd")]


def test_what_compression_keeps_of_a_dropped_gradient_is_dropped_too():
    for far, kept in ranks.run(2, compressed, **connected("tcp")):
        assert far == [0.0] * 8
        assert all(ratio < 0.9 for ratio in kept), kept


def dropped_on_rank_0(**options):
    """One rank drops its gradients while the other uses them; the next backward pass says so, on both."""
    import ddl_torch as ddl

    torch.manual_seed(0)
    table, head = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1)
    named = [("table", table.weight), *head.named_parameters()]
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=0.1)
    optimizer = ddl.DistributedOptimizer(optimizer, named, bucket_bytes=8, **options)
    for _ in range(2):  # the first time, gradients are found to be sparse
        optimizer.zero_grad()
        head(table(torch.tensor([ddl.rank()]))).sum().backward()
        if ddl.rank() == 0:
            optimizer.zero_grad()
        else:
            optimizer.step()
        optimizer.zero_grad()
        with pytest.raises(ddl.InvalidState, match=r"different numbers of steps.*\(rank 0: 0, rank 1: 1\)"):
            head(table(torch.tensor([ddl.rank()]))).sum().backward()
            optimizer.synchronize()  # overlap_update waits until then
        ddl.broadcast_parameters(dict(named))
        optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    head(table(torch.tensor([ddl.rank()]))).sum().backward()
    optimizer.step()
    return optimizer.statistics()["steps"], [p.grad.to_dense().tolist() for _, p in named]


def on_one_rank():
    torch.set_num_threads(1)
    options = [{}, {"check": 1}, {"check": 2}, {"overlap": True}, {"sparse_as_dense": True, "check": 1}]
    options.append({"overlap_update": True})
    return [dropped_on_rank_0(**arguments) for arguments in options]


def test_a_rank_that_drops_takes_part_in_what_the_others_do():
    first, second = ranks.run(2, on_one_rank)
    assert [steps for steps, _ in first] == [steps for steps, _ in second] == [5] * 6
    assert [gradients for _, gradients in first] == [gradients for _, gradients in second]
