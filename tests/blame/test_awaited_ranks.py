"""A rank that others wait for: it is stopped, stuck, slow, or will never call."""

from __future__ import annotations

import dataclasses
from typing import List

import pytest
from blame.accused import lost, only
from blame.fabricated import IN_DDL, LOADING, TAKEN, all_wait_for, call, communicator, dump, job, open_call

from ddl.blame.judge import blame
from ddl.records.dump import RankDump
from ddl.records.layout import LaneRecord

TIMEOUT = "CollectiveTimeout: [rank 0/4 host a] allreduce(4096 x float32, sum): Timed out waiting for rank 2 (host b): "


def test_stopped() -> None:
    finding = only(blame(job(all_wait_for(2), dumps={2: {"state": "is stopped"}})), "stopped", 2)
    assert finding.sentence == (
        "rank 2 (host a, pid 1002) is stopped, and 3 ranks wait for it in allreduce #7 (4096 x float32, sum)"
    )
    assert finding.advice == "let it go on: kill -CONT 1002"
    assert finding.evidence[0] == "rank 0 waits for rank 2 in allreduce #7 (4096 x float32, sum) for 30 s"
    assert finding.evidence[-1] == (
        "rank 2 has called allreduce #6 (4096 x float32, sum) as its last collective, which has ended"
    )


def test_stopped_inside_of_an_operation_or_before_anybody_waits() -> None:
    calls = [[open_call(7, 0.1, 2)] for _ in range(4)]
    only(blame(job(calls, dumps={2: {"state": "is stopped"}})), "stopped", 2)
    finding = only(blame(job([[call(7)]] * 4, dumps={2: {"state": "is stopped by a debugger"}})), "stopped", 2)
    assert finding.advice == "let the debugger go on"


def test_stuck_in_user_code() -> None:
    finding = only(blame(job(all_wait_for(2), dumps={2: {"stacks": LOADING}})), "stuck in user code", 2)
    assert finding.sentence == (
        "rank 2 (host a, pid 1002) sleeps or waits outside of DDL: /home/me/train.py, line 12, in load; "
        "3 ranks wait for it in allreduce #7 (4096 x float32, sum)"
    )
    assert finding.evidence[:3] == (
        "at /usr/lib/python3.11/queue.py, line 171, in get",
        "at /home/me/train.py, line 12, in load",
        "at /home/me/train.py, line 40, in <module>",
    )
    bare = only(blame(job(all_wait_for(2), dumps={2: {"state": "runs"}})), "stuck in user code", 2)
    assert "computes outside of DDL; 3 ranks wait" in bare.sentence and "py-spy dump --pid 1002" in bare.advice


def test_after_a_timeout_the_rank_that_has_not_called_is_stuck() -> None:
    calls = all_wait_for(2)
    for rank in (0, 1, 3):
        calls[rank][-1] = call(7, "failed", begun=60.0, ended=62.0, awaited=2)
    failed = {rank: {"failure": TIMEOUT + "rank 2 has not called it"} for rank in range(4)}
    exits = {rank: {"exit": 1, "state": "has ended"} for rank in (0, 1, 3)}
    dumps = job(calls, records=failed, dumps={**exits, 2: {"stacks": LOADING, "exit": -15, "stopped": True}})
    finding = only(blame(dumps), "stuck in user code", 2)
    assert finding.evidence[3] == "rank 0 gave up waiting for rank 2 in allreduce #7 (4096 x float32, sum) after 2.0 s"

    late = dataclasses.replace(dumps[2], exit=1, stopped=False)
    late = dataclasses.replace(late, process=dataclasses.replace(late.process, state="has ended"))
    finding = only(blame([*dumps[:2], late, dumps[3]]), "never called", 2)
    assert finding.sentence.endswith("came too late to allreduce #7 (4096 x float32, sum): others gave up")


@pytest.mark.parametrize(
    ("view", "state", "said"),
    [
        ({"waits_in": "pipe_read"}, "sleeps", "waits in the kernel for a pipe, in pipe_read()"),
        ({"waits_in": "nfs_wait_bit_killable"}, "sleeps", "for a file of a network file system, in nfs_wait"),
        ({}, "waits in the kernel for a device", "waits in the kernel for a device, and 3 ranks wait"),
        ({"waits_in": "folio_wait_bit"}, "waits in the kernel for a device", "for a disk, in folio_wait_bit()"),
    ],
)
def test_stuck_in_a_system_call(view, state, said) -> None:
    dumps = job(all_wait_for(2), dumps={2: {"stacks": LOADING, "view": view, "state": state}})
    finding = only(blame(dumps), "stuck in a system call", 2)
    assert said in finding.sentence and "at /home/me/train.py, line 12, in load" in finding.evidence


@pytest.mark.parametrize("function", ["hrtimer_nanosleep", "futex_wait_queue", "do_sigtimedwait"])
def test_to_sleep_is_no_system_call_to_be_stuck_in(function: str) -> None:
    dumps = job(all_wait_for(2), dumps={2: {"stacks": LOADING, "view": {"waits_in": function}}})
    only(blame(dumps), "stuck in user code", 2)


def test_never_called() -> None:
    finding = only(blame(lost("it has shut down (its program ended)", exit=0)), "never called", 2)
    assert "has ended its program, while others still wait for it" in finding.sentence
    dumps = lost("it has shut down (its program ended)")
    only(blame(dumps), "never called", 2)
    del dumps[2]
    only(blame(dumps), "never called", 2)
    closed = job(all_wait_for(2), records={2: {"closed": 70.0}}, dumps={2: {"state": "has ended"}})
    only(blame(closed), "never called", 2)


def test_who_calls_something_that_is_not_recorded_is_not_accused_of_user_code() -> None:
    finding = only(blame(job(all_wait_for(2), dumps={2: {"stacks": IN_DDL}})), "unknown", 2)
    assert "is in a function of DDL's that is not recorded" in finding.sentence


def slow_job(**of_rank_2) -> List[RankDump]:
    calls = [
        [call(n, begun=n / 2, ended=n / 2 + 0.3, awaited=None if rank == 2 else 2) for n in range(1, 101)]
        for rank in range(4)
    ]
    lanes = {rank: {"lanes": {"small": LaneRecord(100, 0.2 if rank == 2 else 30.0, 31.0, None)}} for rank in range(4)}
    views = {rank: {"view": {"cpu_seconds": 20.0, "run_delay": 0.1}} for rank in (0, 1, 3)}
    return job(calls, records=lanes, dumps={**views, 2: {"view": of_rank_2}})


@pytest.mark.parametrize(
    ("view", "said"),
    [
        ({"cpu_seconds": 20.0, "run_delay": 29.0}, "had no processor"),
        ({"cpu_seconds": 49.5, "run_delay": 0.2}, "it computes: its threads have used 30 s more"),
        ({"cpu_seconds": 20.5, "run_delay": 0.2}, "it sleeps, or waits for input"),
        ({"cpu_seconds": 35.0, "run_delay": 14.0}, ""),  # neither explains most of it
        ({}, ""),
    ],
)
def test_slow(view, said) -> None:
    finding = only(blame(slow_job(**view)), "slow", 2)
    assert finding.sentence == "rank 2 (host a, pid 1002) comes 298 ms late to each operation, 30 s in all"
    assert finding.evidence[:2] == (
        "rank 2 has waited 200 ms in operations of all ranks, the others 30 s",
        "in 100 of the last 100 operations with a long wait, all others waited, and it did not",
    )
    assert len(finding.evidence) == (3 if said else 2) and said in finding.evidence[-1]


def test_not_slow_if_the_last_operations_do_not_say_so() -> None:
    dumps = slow_job()
    record = dumps[0].record.communicators[0]
    calls = tuple(dataclasses.replace(each, awaited=None) for each in record.collectives)
    fast = dataclasses.replace(dumps[0].record, communicators=(dataclasses.replace(record, collectives=calls),))
    assert blame([dataclasses.replace(dumps[0], record=fast), *dumps[1:]]) == []


def test_transitive_waits_end_at_their_cause() -> None:
    """0 waits for 1, 1 waits for 2 in another communicator, and 2 is stopped."""
    dumps = [
        dump(0, [communicator(0, (0, 1), [open_call(3, 20.0, 1)], number=1)], size=3),
        dump(
            1,
            [communicator(1, (0, 1), [call(2)], number=1), communicator(0, (1, 2), [open_call(9, 25.0, 1)], number=2)],
            size=3,
        ),
        dump(2, [communicator(1, (1, 2), [call(8)], number=2)], size=3, state="is stopped"),
    ]
    finding = only(blame(dumps), "stopped", 2)
    assert "1 rank waits for those" in finding.evidence


def test_a_dump_from_before_the_wait_accuses_nobody() -> None:
    """The clocks of two hosts differ by a day; rank 2 was dumped a minute before the others."""
    day = 86400.0
    older = {"host": "b", "taken": TAKEN + day - 60, "clock": (day, 1e9)}
    finding = only(blame(job(all_wait_for(2), dumps={2: older})), "unknown", 0, 1, 3)
    assert "too old" in finding.sentence and "by the hosts' clocks" in finding.evidence[0]
    only(blame(job(all_wait_for(2), dumps={2: {**older, "taken": TAKEN + day}})), "stuck in user code", 2)


def test_a_wait_as_long_as_those_before_it_is_usual() -> None:
    calls = [[call(6, begun=10.0, ended=25.0, awaited=2), open_call(7, 30.0, 2)] for _ in range(4)]
    calls[2] = calls[2][:1]
    assert blame(job(calls)) == []


def test_ranks_of_a_later_generation_go_by_their_rank_of_now() -> None:
    """Process 4 is rank 1 now; an older generation's failure does not matter any more."""
    world = 1 << 40
    old = communicator(0, (0, 1), [call(9, "failed")], failure="PeerLost: lost rank 1 (host a): its process ended")
    dumps = [
        dump(0, [old, communicator(0, (0, 4), [open_call(2, 30.0, 1)], number=world)], size=2),
        dump(1, [communicator(1, (0, 4), [call(1)], number=world)], size=2, state="is stopped"),
    ]
    dumps[1].record.identity["number"] = 4  # type: ignore[index]
    assert "rank 1 (host a" in only(blame(dumps), "stopped", 1).sentence
