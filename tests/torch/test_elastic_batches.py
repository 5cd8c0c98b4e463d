"""Every sample comes once in an epoch, through a real ``DataLoader`` that reads ahead, while ranks die and join."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import ranks
import torch
from docstrings import run_examples

from ddl import InvalidArgument, InvalidState
from ddl.adapter.sample_cursor import check_committed_once, replay
from ddl.adapter.virtual_shards import VirtualSum, shard_seed
from ddl_torch.elastic import ElasticBatches
from ddl_torch.sampler import epoch_order

LENGTH, BATCH = 151, 4


def loader_of(batches: Any, workers: int, persistent: bool = False) -> Any:
    options: Dict[str, Any] = {}
    if workers:
        # Workers are forked, as in a script; else each imports PyTorch.
        options = {"persistent_workers": persistent, "prefetch_factor": 3, "multiprocessing_context": "fork"}
    return torch.utils.data.DataLoader(range(LENGTH), batch_sampler=batches, num_workers=workers, **options)


class Group:
    """Ranks of a job that is played in this process: each has its batches, its loader, and its loop over it."""

    def __init__(self, size: int, workers: int, persistent: bool, **options: Any) -> None:
        self.workers, self.persistent, self.options = workers, persistent, {"seed": 3, **options}
        self.batches: List[Any] = []
        self.loops: List[Iterator[Any]] = []
        self.log: List[Any] = []
        for rank in range(size):
            self.add(ElasticBatches(LENGTH, BATCH, rank=rank, size=size, **self.options))

    def add(self, batches: Any) -> None:
        self.batches.append(batches)
        self.loops.append(batches.loop(loader_of(batches, self.workers, self.persistent)))

    def step(self) -> List[List[int]]:
        """Return what each rank is given in a step, without padding."""
        shares = []
        for batches, loop in zip(self.batches, self.loops):
            values = next(loop).tolist()
            assert len(values) == BATCH
            shares.append(values[: BATCH - batches.padding])
        return shares

    def commit(self) -> None:
        records = [batches.committed() for batches in self.batches]
        assert records.count(records[0]) == len(records)
        self.log.append(records[0])

    def lose(self, lost: List[int], finished: bool) -> None:
        """Let ranks die within a step; the others have finished it without them, or do it again."""
        kept = [rank for rank in range(len(self.batches)) if rank not in lost]
        self.batches = [self.batches[rank] for rank in kept]
        self.loops = [self.loops[rank] for rank in kept]
        for rank, batches in enumerate(self.batches):
            record = batches.regenerate(rank, len(kept), lost if finished else ())
            assert (record is not None) == finished
        if finished:
            self.log.append(record)

    def join(self, count: int) -> None:
        size = len(self.batches) + count
        for rank, batches in enumerate(self.batches):
            batches.regenerate(rank, size)
        state = self.batches[0].state_dict()
        for rank in range(size - count, size):
            batches = ElasticBatches(LENGTH, BATCH, rank=rank, size=size, **self.options)
            batches.load_state_dict(state)
            self.add(batches)

    def finish(self) -> None:
        assert [next(loop, "the end") for loop in self.loops] == ["the end"] * len(self.loops)


def ranks_come_and_go(workers: int, persistent: bool) -> None:
    group = Group(3, workers, persistent)
    used: List[int] = []
    step = 0
    while len(used) < LENGTH:
        shares = group.step()
        lost: List[int] = []
        if step == 2:
            lost = [1]
            group.lose(lost, finished=True)
        elif step == 3:
            lost = [0, 1]  # all that there are: nothing of this step counts
            group.lose([0], finished=False)
        elif step == 5:
            lost = [0, 2]
            group.lose(lost, finished=True)
        else:
            group.commit()
        used += [i for rank, share in enumerate(shares) if rank not in lost for i in share]
        if step in (4, 6):
            group.join(2)
        step += 1
        states = [batches.state_dict() for batches in group.batches]
        assert states.count(states[0]) == len(states)
    group.finish()
    assert Counter(used) == Counter(range(LENGTH)), "a sample was lost, or came twice"
    assert states[0]["epoch"] == 1 and len(group.batches) == 3
    assert check_committed_once(LENGTH, group.log) == 1
    order = epoch_order(LENGTH, True, 3).tolist()
    again = [
        order[i]
        for record, shares in replay(LENGTH, group.log)
        for rank, (positions, padding) in enumerate(shares)
        if rank not in record.lost
        for i in positions[: len(positions) - padding]
    ]
    assert again == used


@pytest.mark.few(2)
@pytest.mark.processes
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_each_sample_comes_once_while_ranks_come_and_go(workers: int, persistent: bool) -> None:
    ranks.run(1, ranks_come_and_go, workers, persistent)


def what_was_read_ahead(workers: int) -> None:
    """The loader has read far ahead when the ranks change: all but what was committed comes again."""
    batches = ElasticBatches(LENGTH, BATCH, rank=0, size=1, shuffle=False)
    given = []
    for x in batches.loop(loader_of(batches, workers)):
        given.append(x.tolist())
        if len(given) == 3:
            batches.regenerate(1, 2)  # the third is not committed
        elif len(given) == 5:
            batches.regenerate(0, 1, lost=[0])
        else:
            batches.committed()
        if len(given) == 6:
            break
    assert given == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [20, 21, 22, 23], [16, 17, 18, 19]]
    assert next(batches.loop(loader_of(batches, workers))).tolist() == [24, 25, 26, 27]


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_read_ahead_is_dealt_again(workers: int) -> None:
    ranks.run(1, what_was_read_ahead, workers)


# --- shards ---


def steps_of_shards(sizes: List[int], workers: int = 0) -> List[Tuple[int, int, List[int], int]]:
    """Return step, shard, samples and padding of a whole epoch, whose step k is done by ``sizes[k]`` ranks, or more."""
    state, result = None, []
    for size in sizes:
        everybody = [ElasticBatches(LENGTH, BATCH, seed=3, shards=5, rank=rank, size=size) for rank in range(size)]
        for batches in everybody:
            if state is not None:
                batches.load_state_dict(state)
            for x in batches.loop(loader_of(batches, workers)):
                result.append((batches.step, batches.shard, x.tolist(), batches.padding))
                if batches.shard == batches.shards_of_rank[-1]:
                    break
            record = batches.committed()
            assert record.size == 5
        state = everybody[0].state_dict()
    assert state is not None and state["epoch"] == 1
    return sorted(result)


def test_shards_have_the_same_samples_on_any_number_of_ranks() -> None:
    steps = -(-LENGTH // (5 * BATCH))
    expected = steps_of_shards([1] * steps)
    assert [(step, shard) for step, shard, _, _ in expected] == [(k, v) for k in range(steps) for v in range(5)]
    assert Counter(i for *_, x, padding in expected for i in x[: BATCH - padding]) == Counter(range(LENGTH))
    assert steps_of_shards([(k * 3) % 5 + 1 for k in range(steps)]) == expected


def train(adjacent: bool) -> bytes:
    """Train a model with dropout on these ranks, with samples and a shape that no number of ranks divides."""
    import ddl_torch as ddl

    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(50, 6), torch.randn(50, 1))
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = ElasticBatches(data, BATCH, seed=2, shards=5, adjacent=adjacent)
    total = VirtualSum(ddl.world(), 5, adjacent=adjacent)
    assert batches.shards_of_rank == total.own
    for epoch in range(2):
        batches.set_epoch(epoch)
        for x, y in batches.loop(torch.utils.data.DataLoader(data, batch_sampler=batches)):
            torch.manual_seed(shard_seed(2, batches.step, batches.shard))
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            gradients = [p.grad for p in model.parameters()]
            total.add(batches.shard, torch.nn.utils.parameters_to_vector(gradients))
            if batches.shard == total.own[-1]:
                average = torch.from_numpy(total.average())
                torch.nn.utils.vector_to_parameters(average, gradients)
                optimizer.step()
                batches.committed()
    assert batches.epoch == 2
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy().tobytes()


@pytest.mark.processes
def test_weights_have_the_same_bits_on_any_number_of_ranks() -> None:
    (expected,) = ranks.run(1, train, False)
    for size in (2, 3, 5):
        for adjacent in (False, True):
            assert ranks.run(size, train, adjacent) == [expected] * size


# --- epochs, states, mistakes ---


def test_a_script_goes_on_where_its_state_was_saved() -> None:
    def epochs(batches: Any, stop: int) -> List[List[int]]:
        seen = []
        for epoch in range(batches.epoch, 3):
            batches.set_epoch(epoch)
            assert (
                len(batches) == len(loader_of(batches, 0)) == -(-(LENGTH - batches.state_dict()["position"]) // BATCH)
            )
            for x in batches.loop(loader_of(batches, 0)):
                seen.append(x.tolist())
                batches.committed()
                if len(seen) == stop:
                    return seen
        return seen

    whole = ElasticBatches(LENGTH, BATCH, rank=0, size=1)
    expected = epochs(whole, -1)
    assert len(expected) == 3 * 38 and whole.epoch == 3
    for stop in (1, 37, 38, 39, 80):
        broken_off = ElasticBatches(LENGTH, BATCH, rank=0, size=1)
        seen = epochs(broken_off, stop)
        resumed = ElasticBatches(LENGTH, BATCH, rank=0, size=1)
        resumed.load_state_dict(broken_off.state_dict())
        assert seen + epochs(resumed, -1) == expected


def test_records_say_what_they_were_told() -> None:
    batches = ElasticBatches(LENGTH, BATCH, rank=2, size=3)
    loop = batches.loop(loader_of(batches, 0))
    next(loop)
    assert (batches.committed().generation, batches.shard, batches.shards_of_rank) == (0, 2, (2,))
    next(loop)
    record = batches.regenerate(1, 2, lost=[0], generation=5, members=[11, 12])
    assert record is not None and (record.generation, record.lost, record.members) == (0, (0,), ())
    joined = ElasticBatches(LENGTH, BATCH, rank=0, size=2)
    joined.load_state_dict(batches.state_dict())
    for other in (batches, joined):
        next(other.loop(loader_of(other, 0)))
        assert other.step == 2
        record = other.committed()
        assert (record.generation, record.members, record.size) == (5, (11, 12), 2)


def test_the_examples_run() -> None:
    import ddl_torch

    ddl_torch.init()
    try:
        space: Dict[str, Any] = {"ddl_torch": ddl_torch, "DataLoader": torch.utils.data.DataLoader}
        space |= {"dataset": torch.utils.data.TensorDataset(torch.arange(99), torch.arange(99)), "epochs": 2}
        space |= {"train": lambda x, y: None, "gradient_of": lambda x, y: x.float(), "step_with": len}
        with_one, with_shards = (ElasticBatches.__doc__ or "").split("With ``shards``, a step ends")
        assert run_examples(with_one, space) == 3 and space["batches"].epoch == 2
        space["batches"] = batches = ElasticBatches(space["dataset"], 32, shards=3)
        space["loader"] = torch.utils.data.DataLoader(space["dataset"], batch_sampler=batches)
        space["total"] = VirtualSum(ddl_torch.world(), 3)
        assert run_examples(with_shards, space) == 1 and batches.epoch == 1
    finally:
        ddl_torch.shutdown()


def test_mistakes_are_refused() -> None:
    batches = ElasticBatches(LENGTH, BATCH, rank=0, size=2)
    with pytest.raises(InvalidState, match="no step was dealt"):
        batches.committed()
    with pytest.raises(InvalidState, match="there is no batch"):
        assert batches.shard is None
    with pytest.raises(InvalidState, match="151 samples of epoch 0 are not committed"):
        for _ in batches.loop(loader_of(batches, 0)):
            pass
    next(iter(batches))
    batches.committed()
    with pytest.raises(InvalidState, match="no step was dealt"):
        batches.committed()
    before = batches.state_dict()
    for call, words in (
        (lambda: batches.regenerate(2, 2), "rank=2"),
        (lambda: batches.load_state_dict({**before, "seed": 1}), "seed=1.*seed=0"),
        (lambda: batches.load_state_dict({**before, "length": 9}), "9 samples"),
        (lambda: ElasticBatches(0, 1, rank=0, size=1), "0 samples"),
        (lambda: ElasticBatches(9, 0, rank=0, size=1), "batches of 0"),
        (lambda: ElasticBatches(9, 1, rank=0, size=3, shards=2), "2 shards are too few"),
        (
            lambda: ElasticBatches(9, 1, rank=0, size=2, shards=2).regenerate(0, 1, lost=[1]),
            "2 shards has no right sum",
        ),
    ):
        with pytest.raises(InvalidArgument, match=words):
            call()
    assert batches.state_dict() == before


def test_a_plain_loop_over_the_loader_says_that_the_ranks_have_changed() -> None:
    batches = ElasticBatches(LENGTH, BATCH, rank=0, size=2)
    with pytest.raises(InvalidState, match=r"loop\(loader\)"):
        for number, _ in enumerate(loader_of(batches, 0)):
            batches.committed()
            if number == 2:
                batches.regenerate(0, 1)
    assert number == 2
