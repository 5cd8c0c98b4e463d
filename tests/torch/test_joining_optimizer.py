"""``join`` while a distributed optimizer of the others goes on: for how long, with closures, with sparse gradients."""

from __future__ import annotations

import time

import pytest
import ranks

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.processes


def weights_alike(model, last):
    import ddl_torch as ddl

    ddl.broadcast_parameters(model.state_dict(), root_rank=last)
    return len(set(ddl.allgather_object(model.weight.sum().item()))) == 1


def patient():
    """A rank that has joined waits for longer than an operation may take."""
    import ddl_torch as ddl

    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ddl.DistributedOptimizer(optimizer, model.named_parameters(), overlap=True)
    ddl.barrier()
    if ddl.rank() == 0:
        optimizer._ddl.communicator.set_timeout(0.3)
    else:
        time.sleep(1)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    last = ddl.join()
    ddl.barrier()
    return last == 1 and weights_alike(model, last)


def closures(kind, steps, loss_of, passes=1):
    """Return whether training ends well if rank r takes ``steps[r]`` steps, with so many backward passes in each."""
    import ddl_torch as ddl

    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = ddl.DistributedOptimizer(kind(model.parameters()), model.named_parameters())
    seen = []

    def evaluate():
        optimizer.zero_grad()
        for _ in range(passes):
            loss = model(torch.ones(4, 2) * (ddl.rank() + 1)).pow(2).sum()
            loss.backward()
        seen.append(loss.item())
        return loss_of(loss)

    losses = [optimizer.step(evaluate) for _ in range(steps[ddl.rank()])]
    last = ddl.join()
    if ddl.rank() == 1 and loss_of(torch.ones(1)) is not None:
        assert float(losses[-1]) == pytest.approx(seen[len(seen) - len(seen) // len(losses)] / 2)
    return last == 1 and weights_alike(model, last)


def sparse_only():
    """Without a bucket, too, a step that nobody needed is no sign that all have joined."""
    import ddl_torch as ddl

    table = torch.nn.Embedding(4, 2, sparse=True)
    before = table.weight.detach().clone()
    optimizer = ddl.DistributedOptimizer(torch.optim.SparseAdam(table.parameters(), lr=0.1))
    if ddl.rank() == 1:
        optimizer.step()
        table(torch.tensor([1])).sum().backward()
        optimizer.step()
    last = ddl.join()
    alike = weights_alike(table, last)
    moved = [not torch.equal(*rows) for rows in zip(before, table.weight)]
    return last == 1 and alike and (ddl.rank() == 0 or moved == [False, True, False, False])


def run_all():
    torch.set_num_threads(1)
    answers = [patient(), sparse_only()]
    for loss_of in (lambda loss: loss, lambda loss: loss.item(), lambda loss: None):
        answers.append(closures(lambda ps: torch.optim.SGD(ps, lr=0.01), (1, 3), loss_of))
    answers.append(closures(lambda ps: torch.optim.SGD(ps, lr=0.01), (1, 3), lambda loss: loss, passes=2))
    answers.append(closures(lambda ps: torch.optim.LBFGS(ps, lr=0.01, max_iter=2), (1, 2), lambda loss: loss))
    return answers


@pytest.mark.slow
def test_others_go_on_without_a_rank_that_has_joined():
    assert ranks.run(2, run_all) == [[True] * 7] * 2
