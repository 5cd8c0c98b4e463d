"""Which processes an elastic job has, as histories: events with times, and the orders that they bring. No process."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import pytest
from launch.elastic_model import ElasticModel

from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.job.elastic_events import (
    DiscoveryFailed,
    ElasticOrder,
    EndProcess,
    GiveUp,
    HostFailed,
    LetGo,
    ProcessEnded,
    StartProcess,
    TellUser,
)
from ddl.launch.job.elastic_hosts import FORCE_GRACE, LEAVE_GRACE

SCRIPT = "./hosts.sh"


def model(
    size: int, min_np: int = 1, max_np: Optional[int] = None, random: float = 0.0, **options: Any
) -> ElasticModel:
    options.setdefault("discovery_script", SCRIPT)
    return ElasticModel(ElasticOptions(min_np=min_np, max_np=max_np, **options), size, lambda: random)


def started(orders: List[ElasticOrder]) -> List[Tuple[int, str, int]]:
    return [(o.incarnation, o.host, o.slot) for o in orders if isinstance(o, StartProcess)]


def let_go(orders: List[ElasticOrder]) -> List[int]:
    return [order.incarnation for order in orders if isinstance(order, LetGo)]


def told(orders: List[ElasticOrder]) -> List[str]:
    return [order.text for order in orders if isinstance(order, TellUser)]


# --- the beginning ---


def test_it_begins_with_all_slots_when_there_are_enough_and_fills_hosts_in_order() -> None:
    job = model(3)
    waiting = "waiting for 3 slots to begin; there are only 2 slots (a:2), and the job ends after 600 s without "
    assert told(job.see("a:2")) == [f"{waiting}(--elastic-timeout)"]
    orders = job.see("a:2 b:2")
    assert orders == [
        StartProcess(0, "a", 0, 2, True),
        StartProcess(1, "a", 1, 2, True),
        StartProcess(2, "b", 0, 2, True),
        StartProcess(3, "b", 1, 2, True),
    ]


def test_it_begins_with_no_more_than_max_np() -> None:
    assert len(started(model(2, max_np=3).see("a:2 b:2"))) == 3


def test_it_does_not_wait_for_ever_for_slots() -> None:
    job = model(4, timeout=30.0)
    job.see("a:1")
    assert job.machine.next_deadline() == 30.0
    assert job.advance(29.9) == []
    (order,) = job.advance(0.1)
    assert isinstance(order, GiveUp) and job.machine.over
    assert "begins with 4 ranks, but within 30 s (--elastic-timeout) there were only 1 slot (a:1)" in order.why


def test_a_script_that_fails_first_is_fatal() -> None:
    (order,) = model(1).handle(DiscoveryFailed("status", "./hosts.sh exited with status 1"))
    assert order == GiveUp("--host-discovery-script: ./hosts.sh exited with status 1; nothing was started")


# --- hosts come and go ---


def test_horovods_first_scenario() -> None:
    """Two slots, then two more on another host, then only these (facts: hosts_added_and_removed)."""
    job = model(2)
    job.see("a:2")
    orders = job.see("a:2 b:2")
    assert started(orders) == [(2, "b", 0), (3, "b", 1)] and told(orders) == ["host b is new, with 2 slots"]
    job.form(1, 0, 1, 2, 3)
    orders = job.see("b:2")
    assert let_go(orders) == [0, 1] and started(orders) == []
    job.end(0, well=True)
    job.end(1, well=True)
    job.form(2, 2, 3)
    assert not job.machine.problem and not job.machine.finishing and job.machine.left == 2
    job.end(2, well=True)
    assert job.machine.finishing
    job.end(3, well=True)
    assert job.machine.over and job.machine.lost == 0


def test_two_changes_in_one_moment_both_count() -> None:
    job = model(1)
    job.see("a:1")
    assert started(job.see("a:1 b:1")) == [(1, "b", 0)]
    assert started(job.see("a:1 b:1 c:1")) == [(2, "c", 0)]
    assert let_go(job.see("a:1 c:1")) == [1]


def test_fewer_slots_let_the_processes_in_the_last_slots_go() -> None:
    job = model(4)
    job.see("a:4")
    assert let_go(job.see("a:2")) == [2, 3]
    assert started(job.see("a:4")) == []  # they are still there
    assert started(job.end(2, well=True)) == [(4, "a", 2)]


def test_all_hosts_are_replaced_and_the_state_is_handed_on() -> None:
    """The last rank that holds it stays until a newcomer has become a rank."""
    job = model(2, max_np=2)
    job.see("a:2")
    orders = job.see("b:2")
    assert let_go(orders) == [1] and started(orders) == [(2, "b", 0), (3, "b", 1)]
    job.end(1, well=True)
    assert let_go(job.form(1, 0, 2, 3)) == [0]
    job.end(0, well=True)
    assert not job.machine.finishing and not job.machine.problem and job.machine.running == 2


def test_what_does_not_leave_is_ended() -> None:
    job = model(2)
    job.see("a:2")
    job.see("a:1")
    assert job.advance(LEAVE_GRACE - 0.1) == []
    assert job.advance(0.1) == [EndProcess(1, False)]
    assert job.advance(FORCE_GRACE) == [EndProcess(1, True)]
    job.end(1, well=False)
    assert (job.machine.left, job.machine.lost) == (1, 0)


def test_a_host_that_flaps_gets_its_processes_later_and_later() -> None:
    job = model(1)
    job.see("a:1 b:1")
    pauses = []
    for _ in range(9):
        (gone,) = let_go(job.see("a:1"))
        job.end(gone, well=True)
        begin = job.now
        orders = job.see("a:1 b:1")
        while not started(orders):
            deadline = job.machine.next_deadline()
            assert deadline is not None
            orders = job.advance(deadline - job.now)
        pauses.append(job.now - begin)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_process_that_the_others_left_out_must_go() -> None:
    job = model(2)
    job.see("a:2")
    assert job.form(1, 0) == []  # the store tells it
    assert job.advance(LEAVE_GRACE) == [EndProcess(1, False)]
    job.end(1, well=False)
    assert (job.machine.left, job.machine.lost) == (0, 1)


def test_the_others_may_form_a_generation_before_the_end_of_a_rank_is_seen() -> None:
    job = model(3, max_np=3, max_restarts=1)
    job.see("a:3")
    assert job.form(1, 0, 2) == [] and not job.machine.is_leaving(1)
    assert started(job.end(1)) == [(3, "a", 1)]
    assert (job.machine.lost, job.machine.restarts) == (1, 1)


def test_a_rank_that_is_lost_and_replaced_is_one_change() -> None:
    job = model(3, max_np=3)
    job.see("a:3")
    job.form(1, 0, 2)  # before its end is seen
    job.end(1)
    job.form(2, 0, 2, 3)
    job.end(2)  # and the other way round
    job.form(3, 0, 3)
    job.form(4, 0, 3, 4)
    assert job.machine.resets == 2


def test_who_learns_that_it_was_left_out_and_ends_well_is_not_the_end_of_the_training() -> None:
    job = model(2, max_np=2)
    job.see("a:2")
    job.form(1, 0)
    job.end(1, well=True)
    assert not job.machine.finishing and job.machine.left == 1


# --- the script fails ---


def test_a_script_that_fails_later_is_told_once_per_kind_and_the_last_list_stays() -> None:
    job = model(2)
    job.see("a:2")
    for kind, text in (("status", "it exited with status 1"), ("hang", "it has not ended within 5 s")):
        failed = DiscoveryFailed(kind, text)
        warning = f"warning: --host-discovery-script: {text}; the hosts that it named before stay in use"
        assert job.handle(failed) == [TellUser(warning)]
        assert job.handle(failed) == []
    assert told(job.see("")) == [
        "warning: --host-discovery-script: it named no host at all; the hosts that it named before stay in use"
    ]
    assert job.see("") == [] and job.machine.running == 2


def test_no_host_yet_is_no_failure() -> None:
    job = model(1)
    (text,) = told(job.see(""))
    assert text.startswith("waiting for 1 slot to begin; there are only 0 slots (no host), ")
    assert job.see("") == []  # it is told once
    assert started(job.see("a:1")) == [(0, "a", 0)]


# --- processes fail ---


def test_without_a_free_slot_the_job_goes_on_with_fewer_ranks() -> None:
    job = model(4, 2, 4, discovery_script="", max_restarts=0)
    job.see("here:4")
    assert job.end(1) == [] and job.end(2) == []
    (order,) = job.end(3)
    assert order == GiveUp(
        "1 rank left, and --min-np is 2; --max-restarts 0 allows no other process in place of a lost one; "
        "the last change: rank 3 has failed"
    )


def test_a_lost_process_is_replaced_in_a_free_slot() -> None:
    job = model(2, 1, 2, discovery_script="")
    job.see("a:1 b:1 c:1")
    assert started(job.end(1)) == [(2, "c", 0)]
    assert (job.machine.lost, job.machine.restarts, job.machine.came) == (1, 1, 1)


def test_max_restarts_counts_replacements_and_not_growth() -> None:
    job = model(2, max_restarts=1)
    job.see("a:2")
    assert started(job.end(1)) == [(2, "a", 1)]
    job.form(1, 0, 2)
    assert job.end(2) == []
    assert started(job.see("a:2 b:1")) == [(3, "b", 0)]
    assert job.machine.restarts == 1


def test_other_processes_of_a_host_go_on_when_one_fails() -> None:
    job = model(4, max_np=4)
    job.see("a:2 b:2")
    orders = job.end(0)
    assert not let_go(orders) and not started(orders)
    assert told(orders) == ["host a gets no new process, as one has failed there"]
    assert job.machine.running == 3


def test_a_blacklisted_host_that_leaves_the_list_and_comes_back_begins_anew() -> None:
    job = model(2)
    job.see("a:1 b:1")
    assert started(job.end(1)) == []
    assert job.machine.next_deadline() is None
    job.see("a:1")
    assert started(job.see("a:1 b:1")) == [(2, "b", 0)]


def test_the_cool_down_doubles_from_two_to_the_limit() -> None:
    job = model(1, random=0.5, cooldown_range=(10.0, 100.0))
    job.see("a:1 b:1")
    newest, pauses = 1, []
    for _ in range(5):
        assert not started(job.end(newest))
        deadline = job.machine.next_deadline()
        assert deadline is not None
        pauses.append(deadline - job.now)
        ((newest, host, _),) = started(job.advance(deadline - job.now))
        assert host == "b"
    assert pauses == [25, 45, 85, 100, 100]


def test_a_second_failure_during_a_cool_down_changes_nothing() -> None:
    job = model(3, cooldown_range=(10.0, 100.0))
    job.see("a:1 b:2")
    job.end(1)
    assert told(job.end(2)) == []
    assert len(started(job.advance(20.0))) == 2


def test_newcomers_that_fail_on_the_only_host_are_braked() -> None:
    job = model(2, max_np=2)
    job.see("a:2")
    newest, pauses = 1, []
    for _ in range(4):
        begin, orders = job.now, job.end(newest)
        while not started(orders):
            deadline = job.machine.next_deadline()
            assert deadline is not None
            orders = job.advance(deadline - job.now)
        pauses.append(job.now - begin)
        ((newest, _, _),) = started(orders)
    assert pauses == [0, 1, 2, 4]
    job.form(1, 0, newest)  # a newcomer has become a rank: the host is good again
    assert started(job.end(newest)) == [(newest + 1, "a", 1)]


def test_a_lost_host_loses_its_processes_and_they_start_elsewhere() -> None:
    job = model(2, max_np=2)
    job.see("a:1 b:1 c:1")
    orders = job.handle(HostFailed("b", "its agent is gone"))
    assert started(orders) == [(2, "c", 0)] and job.machine.lost == 1
    assert job.end(1) == []  # what comes late counts no more


# --- the end ---


def test_when_a_rank_has_ended_well_nothing_is_started_and_newcomers_go() -> None:
    job = model(2)
    job.see("a:2")
    job.see("a:3")
    assert job.end(0, well=True) == [LetGo(2, "the training has ended"), EndProcess(2, False)]
    assert job.see("a:4") == []
    job.end(1, well=True)
    job.end(2, well=True)
    assert job.machine.over and not job.machine.failed_at_end


def test_a_rank_that_fails_after_the_first_has_ended_well_makes_the_job_fail() -> None:
    job = model(2)
    job.see("a:2")
    job.end(0, well=True)
    job.end(1)
    assert job.machine.over and job.machine.failed_at_end


def test_newcomers_do_not_hold_the_state() -> None:
    job = model(1)
    job.see("a:1")
    job.see("a:2")
    (order,) = [order for order in job.end(0) if isinstance(order, GiveUp)]
    assert order.why == "no rank is left that holds the state of the training; the last change: rank 0 has failed"


def test_below_min_np_it_waits_and_goes_on() -> None:
    job = model(2, 2, timeout=10.0)
    job.see("a:1 b:1")
    job.see("a:1")
    job.end(1, well=True)
    assert not job.advance(9.0)
    assert started(job.see("a:1 c:1")) == [(2, "c", 0)]
    job.form(1, 0, 2)
    assert not job.advance(100.0) and job.machine.next_deadline() is None


def test_below_min_np_it_gives_up_in_the_end() -> None:
    job = model(2, 2, timeout=10.0)
    job.see("a:1 b:1")
    job.see("a:1")
    job.end(1, well=True)
    (order,) = job.advance(10.0)
    assert order == GiveUp(
        "1 rank left, and --min-np is 2, since 10 s (--elastic-timeout); "
        "the last change: host b has left the list of hosts"
    )


def test_all_hosts_blacklisted() -> None:
    job = model(4, 3, 4)
    job.see("a:2 b:2")
    job.end(0)
    orders = job.end(2)
    assert orders[-1] == GiveUp(
        "2 ranks left, and --min-np is 3; on every host a process has failed, so none gets a new one: a, b; "
        "the last change: rank 2 has failed"
    )
    assert job.machine.next_deadline() is None and job.handle(ProcessEnded(1, False, "late")) == []


@pytest.mark.parametrize("limit", [1, 2])
def test_the_reset_limit(limit: int) -> None:
    job = model(2, reset_limit=limit)
    job.see("a:2")
    job.see("a:2 b:2")
    assert job.form(1, 0, 1, 2) == []
    assert job.form(2, 0, 1, 2, 3) == []  # the same change
    job.see("b:2")
    orders = job.form(3, 2, 3)
    given_up = [order for order in orders if isinstance(order, GiveUp)]
    if limit == 2:
        assert not given_up
    else:
        assert given_up == [
            GiveUp(
                "the ranks have formed anew after 2 changes, and --reset-limit 1 allows no more; the last change: "
                "host a has left the list of hosts"
            )
        ]
