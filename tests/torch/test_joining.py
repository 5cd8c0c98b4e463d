"""Ranks that have run out of data, and others that go on: with named verbs, and training."""

from __future__ import annotations

import time

import pytest
import ranks
from negotiation.deadlines import set_deadline

torch = pytest.importorskip("torch")


def run_join():
    import ddl_torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for epoch in range(2):
        order = [(rank + epoch) % size for rank in range(size)]  # rank r has so many batches more than the first
        counts = sorted(range(size), key=lambda r: order[r])
        for batch in range(1 + order[rank]):
            alive = sum(order[r] >= batch for r in range(size))
            # Names that were counted up by each rank for itself do not matter, nor do types.
            assert hvd.allreduce(torch.ones(2, dtype=torch.bfloat16), op=hvd.Sum)[0].item() == alive
            assert hvd.allreduce(torch.ones(2), name=f"batch {batch}")[0].item() == pytest.approx(alive / size)
            pair = hvd.grouped_allreduce([torch.ones(1, dtype=torch.int64), torch.ones(3)], op=hvd.Sum)
            assert pair[0].item() == alive and pair[1].tolist() == [alive] * 3
            if batch == size - 1 > 0:  # all others have joined: only sums can go on without them
                with pytest.raises(
                    RuntimeError, match=r"allgather.*only all-reduces are possible while a rank has joined: rank"
                ):
                    hvd.allgather(torch.ones(1))
                with pytest.raises(RuntimeError, match=r"broadcast.*only all-reduces are possible"):
                    hvd.broadcast(torch.ones(1), 0, name="b")
        assert hvd.join() == counts[-1]
        assert hvd.allgather(torch.tensor([rank])).tolist() == list(range(size))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_rank_without_data_joins(size):
    ranks.run(size, run_join)


def run_long_join(names):
    """Others go on for longer than the deadline, with names that are known or new; afterwards there is a deadline."""
    import ddl_torch as hvd

    hvd.init()
    for _ in range(3):
        hvd.allreduce(torch.ones(3), name="x")
    ranks.meet()
    if hvd.rank() == 0:
        set_deadline(hvd.global_process_set.negotiator, 1)
    else:
        for k in range(names):
            hvd.allreduce(torch.ones(3), name=f"n{k}")
        time.sleep(1.5)
        hvd.allreduce(torch.ones(3), name="x")
    assert hvd.join() == 1
    if hvd.rank() == 1:
        ranks.meet()  # rank 0 has the error
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.allreduce(torch.ones(3), name="x")
    if hvd.rank() == 0:
        ranks.meet()
    return type(caught.value).__name__


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("names", [0, 12])
def test_only_a_rank_that_has_joined_waits_without_a_deadline(names):
    assert ranks.run(2, run_long_join, names)[0] == "CollectiveTimeout"


def run_join_training():
    """Ranks with different numbers of batches, two optimizers of different rhythm, one of them with a sparse table."""
    import ddl_torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    table = torch.nn.Embedding(10, 3, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    two = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters())
    for epoch in range(2):
        counts = [2 + (r + epoch) % size for r in range(size)]
        for batch in range(counts[rank]):
            alive = [r for r in range(size) if counts[r] > batch]
            before = [p.detach().clone() for p in (*model.parameters(), *table.parameters())]
            optimizer.zero_grad()
            model(torch.full((2, 4), 1.0 + rank)).mean().backward()
            if batch % 2 == 0:  # not in every step, and before the other
                two.zero_grad()
                table(torch.tensor([rank, 9])).sum().backward()
                two.step()
            optimizer.step()
            mean = hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum, name="alive")
            assert mean.item() == len(alive)
            # Averages are over all ranks, of which some brought zeros.
            bias = model[1].bias.detach() - before[3]
            torch.testing.assert_close(bias, torch.tensor([-0.1 * len(alive) / size]))
            if batch % 2 == 0:
                moved = (table.weight.detach() - before[4])[:, 0]
                expected = torch.zeros(10)
                expected[alive] = -0.1 / size
                expected[9] = -0.1 * len(alive) / size
                torch.testing.assert_close(moved, expected)
        last = hvd.join()
        assert counts[last] == max(counts)
        assert all(p.grad is None for p in model.parameters())
        hvd.broadcast_parameters({**model.state_dict(), **table.state_dict()}, root_rank=last)
    optimizer.zero_grad()
    model(torch.full((2, 4), 1.0 + rank)).mean().backward()
    optimizer.step()
    assert len(set(hvd.allgather_object(model[0].weight.sum().item()))) == 1


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("size", [1, 3])
def test_training_goes_on_without_ranks_that_have_joined(size):
    ranks.run(size, run_join_training)
