"""Every index comes exactly once over all ranks, but for the remainder, wherever an epoch is broken off and resumed."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
import ranks
from hypothesis import given

torch = pytest.importorskip("torch")

LENGTHS, SIZES = st.integers(1, 70), st.integers(1, 9)
REMAINDERS = st.sampled_from(["pad", "drop", "keep"])


def samplers(length, size, **options):
    from ddl_torch import ShardedSampler

    return [ShardedSampler(length, rank=rank, size=size, **options) for rank in range(size)]


def is_fair(seen, length, size, remainder):
    """``seen`` is all of the data set, but for what ``remainder`` allows on ``size`` ranks."""
    counts = Counter(seen)
    assert set(counts) <= set(range(length))
    extra, missing = len(seen) - len(counts), length - len(counts)
    assert extra <= (size - 1 if remainder == "pad" else 0)
    assert missing <= (size - 1 if remainder == "drop" else 0)


@given(LENGTHS, SIZES, REMAINDERS, st.booleans(), st.integers(0, 5))
def test_an_epoch_is_dealt_out_once(length, size, remainder, shuffle, epoch):
    if remainder == "drop" and length < size:
        return
    shares = []
    for sampler in samplers(length, size, remainder=remainder, shuffle=shuffle, seed=3):
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
        assert len(shares[-1]) == len(sampler)
        assert shares[-1] == list(sampler)  # again the same until the next epoch
    is_fair([i for share in shares for i in share], length, size, remainder)
    lengths = [len(share) for share in shares]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= (remainder == "keep")


@given(LENGTHS, SIZES, REMAINDERS, st.lists(st.tuples(SIZES, st.floats(0, 1)), min_size=1, max_size=4))
def test_a_resumed_epoch_is_dealt_out_once(length, size, remainder, breaks):
    """The job is broken off again and again, at any step, and resumed with any number of ranks."""
    if remainder == "drop" and length < max(size, *(size for size, _ in breaks)):
        return
    state, seen = None, []
    for next_size, share in [*breaks, (size, 1.0)]:
        group = samplers(length, next_size, remainder=remainder, seed=1)
        for sampler in group:
            if state is not None:
                sampler.load_state_dict(state)
                sampler.set_epoch(0)  # the loop of the script comes by
        steps = int(share * min(len(sampler) for sampler in group))
        if share == 1.0:
            steps = len(group[0])
        for sampler in group:
            dealt = list(sampler)[:steps]
            seen += dealt
            for _ in dealt:
                sampler.record(1)
        state = group[0].state_dict()
        if state["epoch"] == 1:
            assert state["processed"] == 0
            break
        assert remainder == "keep" or all(sampler.state_dict() == state for sampler in group)
    assert state["epoch"] == 1
    is_fair(seen, length, next_size, remainder)


@given(st.integers(9, 70), SIZES, st.booleans(), st.integers(0, 3))
def test_the_order_is_that_of_distributed_sampler(length, size, drop, epoch):
    theirs = torch.utils.data.DistributedSampler
    for rank, sampler in enumerate(samplers(length, size, remainder="drop" if drop else "pad", seed=5)):
        other = theirs(range(length), size, rank, seed=5, drop_last=drop)
        other.set_epoch(epoch)
        sampler.set_epoch(epoch)
        assert list(sampler) == list(other)


def test_epochs_differ_and_begin_anew():
    (sampler,) = samplers(50, 1)
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert sampler.epoch == epoch
        orders.append(tuple(sampler))
        sampler.record(20)  # breaks off, and goes on to the next
    assert len(set(orders)) == 3 and {len(order) for order in orders} == {50}
    sampler.set_epoch(0)
    for _ in range(2):  # a script that leaves set_epoch out has the same epoch again
        assert tuple(sampler) == orders[0]
        assert sampler.state_dict()["epoch"] == sampler.state_dict()["processed"] == 0
        sampler.record(50)
        assert sampler.state_dict()["epoch"] == 1


def test_mistakes_are_refused():
    from ddl_torch import InvalidArgument, InvalidState, ShardedSampler

    for options, message in (
        ({"dataset": [], "rank": 0, "size": 1}, "of 0 samples has nothing"),
        ({"dataset": 3, "rank": 0, "size": 4, "remainder": "drop"}, "of 3 samples has nothing for each of 4 ranks"),
        ({"dataset": 3, "rank": 4, "size": 4}, "rank=4"),
        ({"dataset": 3, "rank": 0, "size": 1, "remainder": "uneven"}, "remainder='uneven'"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            ShardedSampler(**options)
    first, _ = samplers(10, 2)
    first.record(3)
    with pytest.raises(InvalidArgument, match=r"record\(3\) after 3 of this rank's 5 samples of epoch 0"):
        first.record(3)
    state = first.state_dict()
    for other, message in ((samplers(11, 2), "length=10.*length=11"), (samplers(10, 2, seed=1), "seed=0.*seed=1")):
        with pytest.raises(InvalidArgument, match=message):
            other[0].load_state_dict(state)
    first.load_state_dict(state)
    assert len(list(first)) == 2
    first.record(1)
    with pytest.raises(InvalidState, match=r"left of epoch 0.*set_epoch\(1\)"):
        iter(first)
    first.set_epoch(1)
    assert len(list(first)) == 5


def with_workers():
    """Two epochs by a loader whose workers stay and read ahead; the second is broken off, and resumed by a new one."""
    import ddl_torch as ddl

    def loader():
        sampler = ddl.ShardedSampler(dataset, seed=2)
        options = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}
        options["multiprocessing_context"] = "fork"  # as in a script; else each imports PyTorch, as it is a test's rank
        return sampler, torch.utils.data.DataLoader(dataset, batch_size=3, sampler=sampler, **options)

    dataset = torch.utils.data.TensorDataset(torch.arange(41))
    sampler, batches = loader()
    seen = [[], []]
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (batch,) in enumerate(batches):
            seen[epoch] += batch.tolist()
            sampler.record(len(batch))
            if epoch == 1 and step == 2:
                break
    state = sampler.state_dict()
    assert state["epoch"] == 1 and state["processed"] == 3 * 3 * ddl.size()
    sampler, batches = loader()
    sampler.load_state_dict(state)
    assert len(batches) == -(-len(sampler) // 3)
    for epoch in range(sampler.epoch, 3):
        sampler.set_epoch(epoch)
        rest = [i for (batch,) in batches for i in batch.tolist()]
        if epoch == 1:
            seen[1] += rest
    assert len(rest) == -(-41 // ddl.size())  # the epoch after the resumed one is whole again
    return seen


@pytest.mark.processes
def test_a_loader_with_workers_resumes():
    answers = ranks.run(2, with_workers, env={"OMP_NUM_THREADS": "1"})
    for epoch in range(2):
        is_fair([i for seen in answers for i in seen[epoch]], 41, 2, "pad")
