"""Histories of an elastic job (see test_elastic_hosts.py) whose hosts call again after they were lost, as pods do."""

from __future__ import annotations

from typing import Any, Optional

from launch.elastic_model import ElasticModel
from launch.test_elastic_hosts import let_go, model, started, told

from ddl.launch.job.elastic_events import GiveUp, HostFailed, HostLeaves, HostReturned, LetGo, RenewHost, TellUser
from ddl.launch.job.elastic_hosts import LEAVE_GRACE


def pods(size: int, min_np: int = 1, slots: str = "a:2 b:2 c:2", **options: Any) -> ElasticModel:
    """Return a job on pods, of which all but the first may return."""
    options = {"discovery_script": "", "returning": ("b", "c"), "max_np": size, **options}
    job = model(size, min_np, **options)
    job.see(slots)
    return job


def lose(job: ElasticModel, host: str) -> Any:
    return job.handle(HostFailed(host, "its node is gone"))


def test_a_host_that_returns_gets_its_processes() -> None:
    job = pods(6)
    assert not started(lose(job, "b")) and not started(job.form(1, 0, 1, 4, 5))
    orders = job.handle(HostReturned("b"))
    assert told(orders) == ["host b is back, with 2 slots"]
    assert started(orders) == [(6, "b", 0), (7, "b", 1)]
    job.form(2, 0, 1, 4, 5, 6, 7)
    assert (job.machine.lost, job.machine.came, job.machine.restarts, job.machine.resets) == (2, 2, 2, 1)


def test_a_lost_host_without_which_the_others_went_on_before_is_lost_and_has_not_left() -> None:
    """Whichever is seen first: the next generation, or the end of the connection to the host."""
    job = pods(6, max_restarts=3)
    job.form(1, 0, 1, 4, 5)
    lose(job, "b")
    assert started(job.handle(HostReturned("b"))) == [(6, "b", 0), (7, "b", 1)]
    assert (job.machine.lost, job.machine.left, job.machine.restarts, job.machine.resets) == (2, 0, 2, 1)


def test_a_lost_host_gets_nothing_before_it_returns_also_after_a_cool_down() -> None:
    job = pods(6, cooldown_range=(1.0, 2.0))
    lose(job, "b")
    assert not started(job.advance(100.0))
    assert started(job.handle(HostReturned("b"))) == [(6, "b", 0), (7, "b", 1)]


def test_one_that_returned_is_as_good_as_new() -> None:
    job = pods(6, cooldown_range=(50.0, 100.0))
    job.end(2)
    assert not started(job.advance(10.0))
    lose(job, "b")
    assert started(job.handle(HostReturned("b"))) == [(6, "b", 0), (7, "b", 1)]


def test_one_that_returns_before_the_loss_was_seen_has_lost_its_processes() -> None:
    job = pods(6)
    assert started(job.handle(HostReturned("b"))) == [(6, "b", 0), (7, "b", 1)]
    assert job.machine.lost == 2


def test_one_that_is_lost_again_and_again_gets_its_processes_later_and_later() -> None:
    job = pods(4, slots="a:2 b:2")
    for pause in (0.0, 1.0, 2.0, 4.0):
        lose(job, "b")
        orders = job.handle(HostReturned("b"))
        if pause:
            assert not started(orders) and not started(job.advance(pause - 0.1))
            orders = job.advance(0.1)
        assert len(started(orders)) == 2


def test_max_restarts_holds_for_hosts_that_return() -> None:
    job = pods(6, max_restarts=3)
    for count in (2, 1, 0):
        lose(job, "b")
        job.handle(HostReturned("b"))
        job.advance(60.0)
        assert len([order for order in job.alive.values() if order.host == "b"]) == count
    assert job.machine.restarts == 3


def test_below_min_np_it_waits_for_a_host_that_may_return() -> None:
    job = pods(2, min_np=2, slots="a:1 b:1", timeout=30.0)
    assert not lose(job, "b") and job.machine.next_deadline() == 30.0
    job.advance(29.0)
    assert started(job.handle(HostReturned("b"))) == [(2, "b", 0)]
    job.form(1, 0, 2)
    assert job.machine.next_deadline() is None
    lose(job, "b")
    (order,) = job.advance(30.0)
    assert isinstance(order, GiveUp) and "since 30 s (--elastic-timeout); the last change: host b was lost" in order.why


def test_the_first_host_does_not_return() -> None:
    job = pods(2, min_np=2, slots="a:1 b:1")
    assert isinstance(lose(job, "a")[-1], GiveUp)


def test_the_ranks_of_a_host_that_is_asked_to_end_leave() -> None:
    job = pods(6)
    assert job.handle(HostLeaves("b", "its node is drained")) == [
        TellUser("host b is to end: its node is drained"),
        LetGo(2, "host b is to end"),
        LetGo(3, "host b is to end"),
    ]
    job.form(1, 0, 1, 4, 5)
    for number in (2, 3):
        assert not job.end(number, well=True)
    assert (job.machine.lost, job.machine.left) == (0, 2)
    assert started(job.handle(HostReturned("b"))) == [(6, "b", 0), (7, "b", 1)]
    assert job.machine.restarts == 0  # nothing was lost


def test_the_last_rank_with_the_state_is_not_let_go() -> None:
    job = pods(2, slots="a:1 b:1")
    lose(job, "a")
    assert not let_go(job.handle(HostLeaves("b", "its node is drained")))
    job.advance(LEAVE_GRACE)
    assert isinstance(lose(job, "b")[-1], GiveUp)


def renewed(orders: Any) -> Optional[str]:
    return next((order.host for order in orders if isinstance(order, RenewHost)), None)


def test_a_host_without_a_rank_that_would_get_none_is_renewed() -> None:
    job = pods(5, slots="a:2 b:2 c:1", min_np=3)
    orders = job.end(4)
    assert renewed(orders) == "c"
    assert "host c has no rank left, so it ends, and a new one may take its place" in told(orders)
    assert started(job.handle(HostReturned("c"))) == [(5, "c", 0)]
    assert not renewed(job.end(3)) and renewed(job.end(2)) == "b"
    assert not renewed(job.end(1)) and not renewed(job.end(0)), "the first host cannot be renewed"


def test_a_host_that_gets_a_process_after_its_cool_down_is_not_renewed() -> None:
    job = pods(2, slots="a:1 b:1", cooldown_range=(1.0, 2.0))
    assert not renewed(job.end(1))
    assert started(job.advance(2.0)) == [(2, "b", 0)]


def test_a_host_that_may_get_no_process_any_more_is_not_renewed() -> None:
    assert not renewed(pods(2, slots="a:1 b:1", max_restarts=0).end(1))


def test_a_host_that_all_ranks_leave_because_of_one_is_renewed() -> None:
    job = pods(6, min_np=6, leave_failed_hosts=True)
    assert let_go(job.end(2)) == [3]
    job.form(1, 0, 1, 4, 5)
    assert renewed(job.end(3, well=True)) == "b"
    assert started(job.handle(HostReturned("b"))) == [(6, "b", 0), (7, "b", 1)]
