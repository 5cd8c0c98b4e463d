"""``elastic``: what is committed comes back, what is synchronised is the same everywhere, no sample comes twice."""

from __future__ import annotations

import copy
import io
import os
import signal
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import ranks
from hypothesis import given

import ddl

torch = pytest.importorskip("torch")


def same(value, other):
    """Compare what may hold tensors, bit by bit."""
    if isinstance(value, torch.Tensor):
        return value.dtype == other.dtype and torch.equal(value, other)
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    if isinstance(value, (list, tuple)):
        return len(value) == len(other) and all(map(same, value, other))
    return value == other


def training(seed, dtype=torch.float32):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + seed))
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3)


def step(model, optimizer, schedule):
    optimizer.zero_grad()
    model(torch.randn(5, 3, dtype=next(model.parameters()).dtype)).square().sum().backward()
    optimizer.step()
    schedule.step()


@pytest.fixture
def alone():
    ddl.init()
    yield
    ddl.shutdown()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_restore_brings_back_what_was_committed(alone, dtype):
    from ddl_torch.elastic import TorchState

    model, optimizer, schedule = training(0, dtype)
    state = TorchState(model, optimizer, schedule=schedule, epoch=3, seen=[1, 2])
    assert state.model is model and state.optimizer is optimizer
    step(model, optimizer, schedule)
    for entry in optimizer.state.values():  # wider than its parameter, which load_state_dict alone would undo
        entry["mine"] = torch.tensor([1 / 3], dtype=torch.float64)
    state.epoch += 1
    state.seen.append(3)
    state.commit()
    committed = copy.deepcopy([part.state_dict() for part in (model, optimizer, schedule)])
    for _ in range(2):
        step(model, optimizer, schedule)
        state.epoch, state.seen[0] = 9, 9
        state.restore()
        assert same(committed, [part.state_dict() for part in (model, optimizer, schedule)])
        assert (state.epoch, state.seen) == (4, [1, 2, 3])


def test_a_name_that_is_taken_is_refused(alone):
    from ddl_torch.elastic import ObjectState

    with pytest.raises(ddl.InvalidArgument, match="'commit' is the name of one of its own"):
        ObjectState(commit=3)


def test_a_value_that_cannot_be_copied_is_named(alone):
    from ddl_torch.elastic import ObjectState

    state = ObjectState(epoch=0, rows=[1])
    state.epoch, state.rows = 1, (row for row in [1])
    with pytest.raises(ddl.InvalidArgument, match="'rows' cannot be copied, .*generator"):
        state.commit()
    state.restore()
    assert (state.epoch, state.rows) == (0, [1])


def test_a_state_of_ones_own_begins_as_with_horovod(alone):
    from ddl_torch.elastic import State, run

    class OwnState(State):
        def __init__(self):
            super().__init__(bcast_object=lambda value: value + 1, get_rank=ddl.rank)
            self.value = 1

        def sync(self):
            self.value = self._bcast_object(self.value)

    assert run(lambda state: state.value)(OwnState()) == 2


def synchronised():
    from ddl_torch.elastic import ElasticSampler, ObjectState, TorchState

    rank = ddl.rank()
    model, optimizer, schedule = parts = training(rank)
    for _ in range(1 + rank):
        step(*parts)
    sampler = ElasticSampler(range(20), shuffle=False)
    list(sampler)
    sampler.record_batch(0, 3 + rank)
    state = TorchState(model, optimizer, schedule=schedule, sampler=sampler, epoch=rank, name=f"of rank {rank}")
    state.sync()
    seen = [copy.deepcopy(part.state_dict()) for part in parts]
    others = state.epoch, state.name, sampler.state_dict()
    step(*parts)
    state.epoch = -1
    state.restore()  # to what sync had saved
    assert same(seen, [part.state_dict() for part in parts]) and state.epoch == 0
    try:
        ObjectState(what=object() if rank == 0 else 3).sync()
    except ddl.InvalidArgument as error:
        assert "object" in str(error)
    else:
        raise AssertionError("an object without data was sent")
    assert float(ddl.allreduce(1.0, op=ddl.Sum)) == ddl.size()
    buffer = io.BytesIO()
    torch.save(seen, buffer)
    return buffer.getvalue(), *others


@pytest.mark.processes
def test_sync_gives_all_ranks_what_rank_0_has_or_an_error():
    torch.set_num_threads(1)  # as the ranks have: other numbers of threads have other bits
    own = training(0)
    step(*own)
    for parts, epoch, name, sampler in ranks.run(2, synchronised):
        assert same(torch.load(io.BytesIO(parts)), [part.state_dict() for part in own])
        assert (epoch, name) == (0, "of rank 0")
        of_both = {0, 2, 4, 1, 3, 5, 7}
        assert sampler == {"epoch": 0, "processed_indices": of_both, "processed_num": 7}


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 5), st.integers(1, 7), st.integers(0, 3), st.booleans())
def test_samples_that_were_used_do_not_come_again(length, before, after, batch, batches, shuffle):
    """An epoch is broken off after some batches, its sets merged, and goes on with another number of ranks."""
    from ddl_torch.elastic import sampler as module

    def samplers(size):
        result = []
        for rank in range(size):
            module.ddl = SimpleNamespace(rank=lambda rank=rank: rank, size=lambda size=size: size)
            result.append(module.ElasticSampler(range(length), shuffle=shuffle, seed=1))
        return result

    try:
        used = set()
        for sampler in samplers(before):
            given_out = list(sampler)
            assert len(given_out) == len(sampler)
            for number in range(batches):
                sampler.record_batch(number, batch)
            assert sampler.processed_indices == set(given_out[: batch * batches])
            assert sampler.processed_num == before * batch * batches == sampler.state_dict()["processed_num"]
            used |= sampler.processed_indices
        rest = []
        for rank, sampler in enumerate(samplers(after)):
            module.ddl = SimpleNamespace(rank=lambda rank=rank: rank, size=lambda: after)
            sampler.load_state_dict({"epoch": 0, "processed_indices": used})
            rest.append(list(sampler))
            assert len(rest[-1]) == len(sampler) == len(rest[0])
        everything = [index for share in rest for index in share]
        assert set(everything) == set(range(length)) - used
        assert len(everything) < len(set(everything)) + after  # as much comes twice as makes shares equal
        sampler.set_epoch(1)
        assert not sampler.processed_indices and len(sampler) == -(-length // after)
    finally:
        module.ddl = ddl


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_what_others_have_used_follows_from_ones_own(length, size, batch, batches):
    from ddl_torch.elastic import sampler as module

    try:
        samplers = []
        for rank in range(size):
            module.ddl = SimpleNamespace(rank=lambda rank=rank: rank, size=lambda: size)
            samplers.append(module.ElasticSampler(range(length), seed=2))
            list(samplers[-1])
            for number in range(batches):
                samplers[-1].record_batch(number, batch)
        whole = length // size * size  # the last part is padded, and not all ranks see it
        for rank, sampler in enumerate(samplers):
            others = [other for other in range(size) if other != rank]
            known = set(sampler.used_by(others))
            used = set().union(*(samplers[other].processed_indices for other in others))
            assert known <= used | set(sampler._order()[whole:])
            assert used - known <= {*sampler._order()[whole:], *sampler._order()[:size]}
    finally:
        module.ddl = ddl


def test_a_sampler_says_by_one_number_what_was_used(alone):
    from ddl_torch.elastic import ElasticSampler

    sampler = ElasticSampler(range(10), seed=5)
    order = list(sampler)
    sampler.record_batch(0, 3)
    assert (sampler.processed_num, sampler.processed_indices) == (3, set(order[:3]))
    sampler.load_state_dict({"epoch": 0, "processed_num": 4})  # as Horovod's state is
    assert list(sampler) == order[4:] and sampler.processed_num == 4
    sampler.processed_num = 2
    sampler.reset()
    assert list(sampler) == order[2:]
    sampler.record_indices(order[2:5])
    state = sampler.state_dict()
    assert state == {"epoch": 0, "processed_indices": set(order[:5]), "processed_num": 5}
    sampler.set_epoch(1)
    assert sampler.processed_num == 0 and sorted(sampler) == list(range(10))
    sampler.load_state_dict(state)
    assert list(sampler) == order[5:] and sampler.processed_num == 5


def loses_a_rank(path):
    from ddl_torch.elastic import HorovodInternalError, TorchState, run

    model, optimizer, schedule = training(ddl.rank())
    state = TorchState(model, optimizer, schedule=schedule, batch=0)
    calls = []

    @run
    def train(state, victim, *, last):
        calls.append(state.batch)
        for batch in range(state.batch, last):
            state.batch = batch
            step(model, optimizer, schedule)
            if state.batch == 3:
                state.commit()
                calls.append(copy.deepcopy(model.state_dict()))
            if state.batch == 5 and ddl.rank() == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            ddl.allreduce(1.0)

    try:
        train(state, 1, last=9)
    except HorovodInternalError as error:
        assert isinstance(error, RuntimeError) and isinstance(error, ddl.PeerLost)
        restored = same(calls[1], model.state_dict())
        return calls[0], state.batch, restored, str(error), error.__cause__


@pytest.mark.processes
@pytest.mark.faults
def test_a_lost_rank_takes_the_state_back_to_its_last_commit(tmp_path):
    survivor, died = ranks.run(2, loses_a_rank, str(tmp_path), may_die=[1])
    assert died == -signal.SIGKILL
    begun, batch, restored, text, cause = survivor
    assert (begun, batch, restored, cause) == (0, 3, True, None)  # one error, which says all
    assert text.startswith("[rank 0/2") and "lost rank 1" in text
    assert text.endswith("if it is to go on with fewer ranks")


def submits_something_else():
    import ddl_torch as hvd

    state = hvd.elastic.ObjectState(batch=0)

    @hvd.elastic.run
    def train(state):
        state.batch = 7
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="loss")

    try:
        train(state)
    except ddl.CollectiveMismatch as error:
        return state.batch, str(error), error.__cause__, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


@pytest.mark.processes
def test_ranks_that_differ_are_not_told_to_start_again():
    for batch, text, cause, after in ranks.run(2, submits_something_else):
        assert (batch, cause, after) == (0, None, 2)
        assert "loss" in text and text.count("last commit") == 1
        assert text.endswith("; the state is that of the last commit")


def changes_hosts_in_an_epoch():
    from ddl_torch.elastic import ElasticSampler, HostsUpdatedInterrupt, TorchState, run

    state = TorchState(sampler=ElasticSampler(range(12), shuffle=False))
    shares = []

    @run
    def train(state):
        shares.append(list(state.sampler))
        if len(shares) == 1:
            state.sampler.record_batch(0, 1 + 2 * ddl.rank())
            raise HostsUpdatedInterrupt(skip_sync=True)
        return shares

    return train(state)


@pytest.mark.processes
def test_samplers_agree_on_what_is_left_without_sync():
    (first, left), (second, other) = ranks.run(2, changes_hosts_in_an_epoch)
    assert set(left + other) == set(range(12)) - {first[0], *second[:3]}
    assert len(left) == len(other) == 4


def test_hosts_that_have_changed_call_the_function_again(alone):
    from ddl_torch.elastic import HostsUpdatedInterrupt, ObjectState, run

    state, seen = ObjectState(batch=0), []
    state.register_reset_callbacks([lambda: seen.append("reset")])

    @run
    def train(state):
        seen.append(state.batch)
        state.batch += 1
        if state.batch < 3:
            raise HostsUpdatedInterrupt(skip_sync=state.batch == 1)
        return "result"

    assert train(state) == "result"
    assert seen == [0, "reset", 1, "reset", 2]


def test_a_rank_lost_while_the_hosts_change_takes_the_state_back(alone):
    from ddl_torch.elastic import HostsUpdatedInterrupt, ObjectState, run

    def lose():
        raise ddl.PeerLost("lost rank 1")

    state = ObjectState(batch=0)
    state.register_reset_callbacks([lose])

    @run
    def train(state):
        state.batch = 5
        raise HostsUpdatedInterrupt

    with pytest.raises(ddl.PeerLost, match="^lost rank 1; the state .* start the job again, by ddlrun --min-np .*"):
        train(state)
    assert state.batch == 0


def test_other_errors_pass_through(alone):
    from ddl_torch.elastic import ObjectState, run

    state = ObjectState(batch=0)

    @run
    def train(state):
        state.batch = 5
        raise KeyError("what the script did")

    with pytest.raises(KeyError, match="what the script did"):
        train(state)
    assert train.__name__ == "train" and state.batch == 5
