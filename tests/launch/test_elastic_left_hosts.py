"""Histories of an elastic job (see test_elastic_hosts.py): a host that is left out as a whole, and the reset limit."""

from __future__ import annotations

from launch.test_elastic_hosts import let_go, model, started

from ddl.launch.job.elastic_events import EndProcess, GiveUp, LetGo, TellUser
from ddl.launch.job.elastic_prospects import NEWS_GRACE


def test_the_whole_host_leaves_if_that_is_wanted() -> None:
    job = model(2, max_np=4, leave_failed_hosts=True)
    job.see("a:2 b:2")
    orders = job.end(0)
    assert orders == [
        TellUser("host a gets no new process, as one has failed there"),
        LetGo(1, "another rank on host a has failed (--leave-failed-hosts)"),
    ]
    assert job.form(1, 1, 2, 3) == [] and job.form(2, 2, 3) == []
    job.end(1, well=True)
    assert (job.machine.lost, job.machine.left, job.machine.running, job.machine.resets) == (1, 1, 2, 1)
    assert not job.machine.problem and not job.machine.finishing


def test_a_host_that_has_left_comes_back_after_its_cool_down() -> None:
    job = model(2, max_np=4, leave_failed_hosts=True, cooldown_range=(1.0, 2.0))
    job.see("a:2 b:2")
    assert let_go(job.end(3)) == [2]
    job.end(2, well=True)
    assert not started(job.advance(1.9))
    assert started(job.advance(0.1)) == [(4, "b", 0), (5, "b", 1)]


def test_when_all_hosts_are_to_leave_the_job_ends() -> None:
    for min_np in (1, 2):
        job = model(2, min_np, 4, leave_failed_hosts=True)
        job.see("a:2 b:2")
        assert let_go(job.end(0)) == [1]
        orders = job.end(2)
        assert let_go(orders) == []  # rank 3 alone holds the state now
        assert orders[-1] == GiveUp(
            f"0 ranks left, and --min-np is {min_np}; on every host a process has failed, so none gets a new one: a, "
            "b; the last change: rank 2 has failed"
        )


def test_the_last_rank_with_the_state_waits_on_a_host_that_is_to_leave() -> None:
    job = model(1, max_np=2, leave_failed_hosts=True, cooldown_range=(60.0, 60.0), timeout=30.0)
    job.see("a:2")
    assert let_go(job.end(0)) == [] and job.machine.next_deadline() == 30.0
    assert started(job.see("a:2 b:1")) == [(2, "b", 0)]
    assert let_go(job.form(1, 1, 2)) == [1]


def test_the_last_rank_with_the_state_stays_if_its_host_comes_back_in_time() -> None:
    job = model(1, max_np=1)
    job.see("a:1")
    assert started(job.see("b:1")) == [(1, "b", 0)]
    assert let_go(job.see("a:1 b:1")) == [1]  # else there would be more than --max-np


def test_the_reset_limit_waits_to_hear_who_has_failed() -> None:
    """The others may form a generation before ddlrun sees the end of the rank that they miss."""
    job = model(2, reset_limit=0)
    job.see("a:2")
    assert job.form(1, 0) == []
    (order,) = job.end(1)
    assert isinstance(order, GiveUp) and order.why.endswith("the last change: rank 1 has failed")
    assert job.machine.blamed == 1


def test_the_reset_limit_does_not_wait_long() -> None:
    job = model(2, reset_limit=0)
    job.see("a:2")
    job.form(1, 0)
    assert job.advance(NEWS_GRACE - 0.1) == []
    (order,) = job.advance(0.1)
    assert isinstance(order, GiveUp)


def test_too_few_ranks_wait_to_hear_who_has_failed() -> None:
    job = model(2, min_np=2, timeout=10.0)
    job.see("a:2")
    assert let_go(job.form(1, 0)) == []
    assert job.advance(10.0) == [EndProcess(1, False)]
    order = job.end(1)[-1]
    assert isinstance(order, GiveUp) and order.why.endswith("the last change: rank 1 has failed")


def test_too_few_ranks_do_not_wait_long() -> None:
    job = model(2, min_np=2, timeout=10.0)
    job.see("a:2")
    job.form(1, 0)
    assert job.advance(10.0 + NEWS_GRACE - 0.1) == [EndProcess(1, False)]
    (order,) = job.advance(0.1)
    text = "since 10 s (--elastic-timeout); the last change: the others go on without process 1 (host a)"
    assert isinstance(order, GiveUp) and order.why.endswith(text)
