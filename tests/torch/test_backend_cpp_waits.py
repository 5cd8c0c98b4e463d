"""torch's C++ waits for works of the backend "ddl", which are Python: no such wait lasts longer than our deadline.

Each place in torch where C++ waits is driven here by a rank whose peer stays away. All are driven at the same time: a
wait that held Python's lock would stop the others.
"""

from __future__ import annotations

import datetime
import gc
import threading
import weakref

import pytest
import ranks
from process_groups import begin

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.processes

LIMIT = 2.0  # seconds of an operation
PATIENCE = 60.0  # seconds; a thread that is still there has hung


def ddp(module, group, **options):
    return torch.nn.parallel.DistributedDataParallel(module, process_group=group, **options)


def linear():
    torch.manual_seed(1)
    return torch.nn.Linear(4, 2)


def step(model):
    model(torch.ones(3, 4)).sum().backward()


# Each returns what one rank calls while the other does not; both have called the function itself.


def verify_parameters(dist, group):
    """``_verify_params_across_processes``, as DDP is made."""
    return lambda: ddp(linear(), group)


def broadcast_parameters(dist, group):
    """``_broadcast_coalesced``, as DDP is made and before each forward pass with buffers. Its root need not wait."""
    return lambda: dist._broadcast_coalesced(group, [torch.ones(3)], 1 << 20, 1 - dist.get_rank(group))


def average_a_bucket(dist, group):
    """The future of a bucket's all-reduce, at the end of ``backward``."""
    model = ddp(linear(), group)
    step(model)
    model(torch.ones(3, 4)).sum()  # rebuilds buckets, so that there is nothing else to wait for
    return lambda: step(model)


def average_a_static_graph(dist, group):
    """The same, of a graph that does not change: all buckets after the first ``backward``."""
    model = ddp(linear(), group, static_graph=True)
    return lambda: step(model)


def average_by_a_builtin_hook(dist, group):
    """A future that C++ attaches something to."""
    model = ddp(linear(), group)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return lambda: step(model)


def reduce_the_map_of_used_parameters(dist, group):
    """``find_unused_parameters``: which ones other ranks have used. The other rank only averages the bucket."""
    model = ddp(linear(), group, find_unused_parameters=True)
    loss = model(torch.ones(3, 4)).sum()
    if dist.get_rank() == 1:
        dist.all_reduce(torch.zeros(10), group=group, async_op=True)
    return lambda: (loss.backward(), model)  # which lives that long


def rebuild_buckets(dist, group):
    """``sync_bucket_indices``, before the second forward pass: what rank 0 has found."""
    model = ddp(linear(), group)
    step(model)
    return lambda: model(torch.ones(3, 4))


def count_who_takes_part(dist, group):
    """``join``: the number of ranks by which a gradient is divided, in the middle of ``backward``."""
    model = ddp(linear(), group)

    def call():
        with model.join(divide_by_initial_world_size=False):
            step(model)

    return call


def wait_for_a_tensor(dist, group):
    """Functional collectives: ``wait_tensor``."""
    functional = torch.distributed._functional_collectives
    return lambda: functional.all_reduce(torch.ones(3), "sum", group).add(1)


def hand_a_work_to_a_tensor(dist, group):
    """A work of Python that waits for one of our own, and is given to C++."""
    c10d = torch._C._distributed_c10d
    if not hasattr(c10d, "_register_work"):
        return lambda: dist.all_reduce(torch.ones(3), group=group)  # no such way

    def call():
        tensor = torch.ones(3)
        c10d._register_work(tensor, dist.all_reduce(tensor, group=group, async_op=True))
        gc.collect()
        torch.ops._c10d_functional.wait_tensor(tensor)

    return call


WAITS = [
    *(verify_parameters, broadcast_parameters, average_a_bucket, average_a_static_graph, average_by_a_builtin_hook),
    *(reduce_the_map_of_used_parameters, rebuild_buckets, count_who_takes_part, wait_for_a_tensor),
    hand_a_work_to_a_tensor,
]


def stays_away(path):
    dist, r, n = begin(path)
    calls, groups = [], []
    for wait in WAITS:
        group = dist.new_group([0, 1])
        groups.append(group)
        call, absent = wait(dist, group), 0 if wait is rebuild_buckets else 1
        if r != absent:
            calls.append((wait.__name__, call, absent))
    dist.barrier()
    ranks.meet()
    for group in groups:
        group.set_timeout(datetime.timedelta(seconds=LIMIT))
    outcomes = {}

    def run(name, call):
        try:
            outcomes[name] = repr(call())
        except Exception as error:
            outcomes[name] = str(error)

    threads = [threading.Thread(target=run, args=(name, call), name=name, daemon=True) for name, call, _ in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    hanging = [thread.name for thread in threads if thread.is_alive()]
    assert not hanging
    texts = {name: f"rank {absent} has not called it" for name, _, absent in calls}
    assert not {name: outcomes[name] for name, text in texts.items() if text not in outcomes[name]}
    dist.barrier()  # the world is whole
    return sorted(texts)


@pytest.mark.slow
def test_a_rank_stays_away(tmp_path) -> None:
    both = ranks.run(2, stays_away, str(tmp_path / "store"), initialise=False, timeout=2 * PATIENCE)
    assert sorted(both[0] + both[1]) == sorted(wait.__name__ for wait in WAITS)


def takes_a_work(function):
    arguments = (getattr(function, "__doc__", None) or "").partition("->")[0]
    return "c10d::Work" in arguments or "_c10d.Work," in arguments or "_c10d.Work)" in arguments


@pytest.mark.slow
def test_torch_has_no_other_function_that_takes_a_work_and_may_keep_it() -> None:
    """Who hands a work of Python to one of these keeps it (``Reducer``), or torch does (``_register_work``)."""
    c10d = torch._C._distributed_c10d
    # The last one only a torch for CUDA has: it takes a work of NCCL's own.
    known = {"Reducer._set_forward_pass_work_handle", "_register_work", "ProcessGroupNCCL._verify_work_timeout"}
    there = {name for name in dir(c10d) if takes_a_work(getattr(c10d, name))}
    for name, kind in vars(c10d).items():
        if isinstance(kind, type) and kind is not c10d.Work and not issubclass(kind, c10d.Work):
            there |= {f"{name}.{method}" for method in dir(kind) if takes_a_work(getattr(kind, method))}
    assert "Reducer._set_forward_pass_work_handle" in there and there <= known


def uneven(path, static):
    dist, r, n = begin(path)
    model, gradients = ddp(linear(), None), []
    with model.join(divide_by_initial_world_size=static):
        for _ in range(2 + 2 * r):
            (model(torch.ones(3, 4)).sum() * (r + 1)).backward()
            gradients.append(model.module.weight.grad[0, 0].item())
            model.zero_grad()
    model.zero_grad()  # outside, all ranks take part again, and none waits for the work of the last step in ``join``
    (model(torch.ones(3, 4)).sum() * (r + 1)).backward()
    dist.destroy_process_group()
    return [*gradients, model.module.weight.grad[0, 0].item()]


@pytest.mark.parametrize("static", [False, True])
def test_join_divides_by_those_who_take_part(static: bool, tmp_path) -> None:
    short, long = ranks.run(2, uneven, str(tmp_path / "store"), static, initialise=False)
    assert short == [4.5, 4.5, 4.5]
    assert long == [4.5, 4.5, *([3.0, 3.0] if static else [6.0, 6.0]), 4.5]


class Kept:
    """A work that can be told from others, and watched."""


def test_works_that_nobody_waits_for_are_not_kept_for_ever() -> None:
    from ddl_torch.c10d import lifetime

    unwaited, works = lifetime.Unwaited(), [Kept() for _ in range(lifetime._MOST + 2)]
    watched = [weakref.ref(work) for work in works]
    for work in works:
        unwaited.add(work)
    unwaited.remove(works[-1])
    unwaited.remove(works[-1])
    works.clear()
    del work
    alive = [number for number, work in enumerate(watched) if work() is not None]
    assert alive == list(range(2, len(watched) - 1))


def in_the_middle(path):
    """A work, the future of an older receive, and the future of the work; the message comes when that is known."""
    dist, r, n = begin(path)
    x, message = torch.ones(2), torch.zeros(3)
    if r == 0:
        received = dist.irecv(message, 1).get_future()
        assert dist.all_reduce(x, async_op=True).get_future().wait()[0].tolist() == [2, 2]
        dist.barrier()
        assert received.wait()[0].tolist() == [7, 7, 7]
    else:
        dist.all_reduce(x)
        dist.barrier()
        dist.send(message + 7, 0)
    dist.destroy_process_group()


def test_the_future_of_a_verb_does_not_wait_for_that_of_a_message(tmp_path) -> None:
    ranks.run(2, in_the_middle, str(tmp_path / "store"), initialise=False)
