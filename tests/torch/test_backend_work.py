"""The handles of the backend "ddl": polling instead of waiting, what raises while results are written, and futures."""

from __future__ import annotations

import threading
import time
from unittest import mock

import pytest
import ranks
from process_groups import begin

torch = pytest.importorskip("torch")

LIMIT = 60.0  # seconds; a thread that is still there has hung


def poll(work):
    """Do what a program does that never waits."""
    end = time.monotonic() + LIMIT
    while not work.is_completed():
        assert time.monotonic() < end
        time.sleep(0.001)


def polled(path):
    dist, r, n = begin(path)
    each = [torch.full((3,), rank + 1.0) for rank in range(n)]
    outputs = [torch.zeros(3) for _ in range(n)]
    poll(dist.all_gather(outputs, each[r], async_op=True))
    assert torch.equal(torch.stack(outputs), torch.stack(each))
    turned = torch.full((3, 2), r + 1).t()
    poll(dist.all_reduce(turned, async_op=True))
    assert torch.equal(turned, torch.full((2, 3), n * (n + 1) // 2))
    bits = torch.tensor([1 << r])
    poll(dist.all_reduce(bits, op=dist.ReduceOp.BOR, async_op=True))
    assert bits.item() == (1 << n) - 1

    # After the end of the group, in the caller's thread; and from a work that nobody has waited for.
    waited, not_waited = (dist.all_gather(outputs, each[r], async_op=True) for _ in range(2))
    waited.wait()
    poll(not_waited)
    dist.destroy_process_group()
    for work in (waited, not_waited):
        ended = threading.Thread(target=work.get_future().wait, daemon=True)
        ended.start()
        ended.join(LIMIT)
        assert not ended.is_alive()


@pytest.mark.slow
def test_polling_and_futures_after_the_end(tmp_path) -> None:
    ranks.run(2, polled, str(tmp_path / "store"), initialise=False)


class Failing:
    """A work that ends with an error that is none of DDL's."""

    def done(self):
        return True

    def wait(self, timeout=None):
        raise MemoryError("no memory")


def refuse():
    raise MemoryError("no memory")


@pytest.mark.parametrize("part", [(Failing(), None), (None, refuse)], ids=["work", "finish"])
def test_any_error_comes_from_each_wait_and_future(part) -> None:
    from ddl_torch.c10d.work import GroupWork, Waiter

    waiter = Waiter()
    work, good = GroupWork([], [part], waiter), GroupWork([torch.ones(1)], [], waiter)
    for _ in range(2):
        with pytest.raises(MemoryError):
            work.wait()
    assert work.is_completed() and not work.is_success() and isinstance(work.exception(), MemoryError)
    with pytest.raises(Exception, match="no memory"):
        work.get_future().wait()
    answer = []
    thread = threading.Thread(target=lambda: answer.extend(good.get_future().wait()), daemon=True)
    thread.start()
    thread.join(LIMIT)
    waiter.close()
    assert answer == [torch.ones(1)]


def test_what_completes_a_future_may_wait_for_a_later_one_while_the_group_ends() -> None:
    from ddl_torch.c10d.work import Waiter

    waiter, begun, go, later, all_done = Waiter(), *(threading.Event() for _ in range(4))

    def first():
        begun.set()
        go.wait(LIMIT)

    waiter.ask(first, lambda: later.wait(LIMIT) and all_done.set())
    begun.wait(LIMIT)
    waiter.ask(lambda: None, later.set)
    waiter.close()
    go.set()
    assert all_done.wait(LIMIT / 2)


def blocking(path, takes_none):
    """Call verbs that block, with a torch that takes None for a work that has ended, and as with one that does not."""
    dist, r, n = begin(path)
    from ddl_torch.c10d import process_group

    with mock.patch.object(process_group, "TAKES_NO_WORK", takes_none):
        check_works_of_blocking(dist.group.WORLD, n, takes_none)
        check_results_of_blocking(dist, r, n)


def check_works_of_blocking(group, n, takes_none):
    opts = torch.distributed.AllreduceOptions()
    assert group.allreduce([torch.ones(2)], opts).result()[0].tolist() == [n, n]  # the caller goes on meanwhile
    opts.asyncOp = False
    two = [torch.ones(2), torch.ones(3)]
    for tensors in ([two[0]], two):
        work = group.allreduce(tensors, opts)
        assert work is None if takes_none else work.wait()
    assert [tensor.tolist() for tensor in two] == [[n * n] * 2, [n] * 3]
    turned = torch.ones(2, 3).t()  # to wait for: its result is elsewhere when it has come
    assert group.allreduce([turned], opts).wait()
    assert torch.equal(turned, torch.full((3, 2), float(n)))


def check_results_of_blocking(dist, r, n):
    own, whole = torch.full((2,), r + 1.0), torch.arange(1.0, n + 1).repeat_interleave(2)
    gathered, part, swapped = torch.zeros(2 * n), torch.zeros(2), torch.zeros(n)
    dist.all_gather_into_tensor(gathered, own)
    assert torch.equal(gathered, whole)
    dist.reduce_scatter_tensor(part, gathered)
    assert torch.equal(part, n * own)
    dist.all_to_all_single(swapped, torch.arange(1.0, n + 1))
    assert torch.equal(swapped, torch.full((n,), r + 1.0))
    for dtype in (torch.bfloat16, torch.complex64, torch.bool):
        received = torch.full((3,), r == 1).to(dtype)
        dist.broadcast(received, 1)
        assert torch.equal(received, torch.ones(3, dtype=torch.bool).to(dtype))
    dist.barrier()


@pytest.mark.skipif(not hasattr(torch.distributed.AllreduceOptions, "asyncOp"), reason="torch before 2.8 waits for all")
@pytest.mark.parametrize("takes_none", [True, False])
def test_blocking_verbs_with_a_torch_that_takes_no_work_and_one_that_does(tmp_path, takes_none) -> None:
    ranks.run(2, blocking, str(tmp_path / "store"), takes_none, initialise=False)
