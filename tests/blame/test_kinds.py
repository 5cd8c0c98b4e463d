"""Every kind of finding, from dumps that never were: who is blamed, for what, with which evidence."""

from __future__ import annotations

import dataclasses
from typing import List, Sequence, Tuple

import pytest
from blame.fabricated import (
    IN_DDL,
    LOADING,
    TAKEN,
    all_wait_for,
    call,
    communicator,
    dump,
    job,
    message,
    open_call,
)

from ddl.blame.finding import KINDS, Finding, last_words
from ddl.blame.judge import blame
from ddl.blame.report import report
from ddl.errors import InternalError
from ddl.records.dump import JobEnd, RankDump
from ddl.records.layout import CommunicatorRecord, LaneRecord

LOST = "PeerLost: [rank 0/4 host a] allreduce(4096 x float32, sum): lost rank 2 (host b): "
TIMEOUT = "CollectiveTimeout: [rank 0/4 host a] allreduce(4096 x float32, sum): Timed out waiting for rank 2 (host b): "


def only(findings: Sequence[Finding], kind: str, *ranks: int) -> Finding:
    """Return the finding, which is the only one, of this kind and about these ranks."""
    assert [(finding.kind, finding.ranks) for finding in findings] == [(kind, ranks)]
    return findings[0]


def lost(why: str, **of_rank_2) -> List[RankDump]:
    """Three ranks that have lost rank 2, of which rank 1 had not called the operation yet."""
    calls = [[call(6), call(7, "failed", begun=70.0, ended=71.0)] for _ in range(4)]
    calls[1] = calls[2] = [call(6)]
    failed = {"failure": LOST + why, "closed": 99.0}
    return job(
        calls,
        records={0: failed, 1: failed, 3: failed},
        dumps={**{rank: {"exit": 1} for rank in (0, 1, 3)}, 2: {"host": "b", **of_rank_2}},
    )


def test_dead_by_a_signal() -> None:
    end = JobEnd(4, {"kind": "PeerLost", "culprit": 2, "reason": "its process ended"}, 2)
    finding = only(blame(lost("its process ended", exit=-11, state="has ended"), end), "dead", 2)
    assert finding.sentence == "rank 2 (host b, pid 1002) was killed by signal 11 (SIGSEGV)" and finding.host == "b"
    assert "faulthandler" in finding.advice
    assert "the job's store says the same: PeerLost: rank 2: its process ended" in finding.evidence
    assert finding.evidence[0] == "rank 0 lost rank 2 in allreduce #7 (4096 x float32, sum): its process ended"


def test_dead_by_its_status_with_its_last_lines() -> None:
    end = JobEnd(4, None, 2, {}, {2: ["Traceback (most recent call last):", "ValueError: no such file"]})
    finding = only(blame(lost("it has shut down (its program ended)", exit=3), end), "dead", 2)
    assert finding.sentence == "rank 2 (host b, pid 1002) exited with status 3"
    assert finding.evidence[:2] == ("its last lines: Traceback (most recent call last):", "ValueError: no such file")


def test_dead_where_nobody_knows_how() -> None:
    dumps = lost("its process ended (connection closed without goodbye)", state="has ended")
    assert "not known how" in only(blame(dumps), "dead", 2).sentence
    del dumps[2]
    assert "not known how" in only(blame(dumps), "dead", 2).sentence


def test_dead_by_the_words_of_the_launcher() -> None:
    dumps = lost("its process ended")
    del dumps[2]
    end = JobEnd(4, None, 2, {2: "rank 2 (host b, pid 17) was killed by signal 9 (SIGKILL)"})
    finding = only(blame(dumps, end), "dead", 2)
    assert finding.sentence == "rank 2 (host b) was killed by signal 9 (SIGKILL)" and finding.host == "b"
    only(blame([], end), "dead", 2)  # nobody has dumped anything


def test_the_consequences_of_a_death_are_not_accused() -> None:
    """Rank 2 dies, rank 0 fails because of it, and rank 1 loses rank 0 in a communicator without rank 2."""
    pair = {"number": 5, "failure": "PeerLost: [rank 1/4 host a] barrier(): lost rank 0 (host a): it has shut down"}
    dumps = lost("its process ended", exit=-9)
    dumps[1] = dump(1, [communicator(1, (0, 1), [call(1, "failed")], **pair)], exit=1)
    dumps[3] = dump(3, [communicator(3, range(4), [call(6)])], exit=-15, stopped=True)
    only(blame(dumps), "dead", 2)


def test_a_rank_that_died_while_it_waited_accuses_nobody() -> None:
    calls = all_wait_for(1)
    calls[0] = calls[3] = [call(6)]
    only(blame(job(calls, dumps={2: {"exit": -9, "state": "has ended"}})), "dead", 2)


def test_out_of_memory() -> None:
    words = "Memory cgroup out of memory: Killed process 1002 (python)"
    finding = only(blame(lost("its process ended", exit=-9, view={"out_of_memory": words})), "out of memory", 2)
    assert f"the kernel: {words}" in finding.evidence


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"count": 5}, "allreduce(5 x float32, sum)"),
        ({"dtype": "float64"}, "allreduce(4096 x float64, sum)"),
        ({"op": "max"}, "allreduce(4096 x float32, max)"),
        ({"collective": "broadcast", "root": 3}, "broadcast(4096 x float32, root 3)"),
    ],
)
def test_called_something_else(changes, said) -> None:
    mismatch = {"failure": "CollectiveMismatch: [rank 0/4 host a] allreduce(): the calls do not match"}
    calls = [[call(6), call(7, "failed", **(changes if rank == 2 else {}))] for rank in range(4)]
    calls[1].append(call(8, "failed", count=1))  # what comes after the first difference does not matter
    dumps = job(calls, records=dict.fromkeys(range(4), mismatch), dumps=dict.fromkeys(range(4), {"exit": 1}))
    end = JobEnd(4, {"kind": "CollectiveMismatch", "culprit": -1, "reason": "rank 0 called …"})
    finding = only(blame(dumps, end), "called something else", 2)
    assert finding.sentence == (
        f"rank 2 (host a, pid 1002) called {said} as operation #7; most ranks called allreduce(4096 x float32, sum)"
    )
    assert finding.evidence[:2] == (
        "ranks 0, 1, 3 called allreduce(4096 x float32, sum) as #7",
        f"rank 2 called {said} as #7",
    )


def test_without_a_majority_nobody_is_the_odd_rank() -> None:
    finding = only(blame(job([[call(7, "failed")], [call(7, "failed", count=5)]])), "called something else", 0, 1)
    assert "there is no majority" in finding.sentence and len(finding.evidence) == 2


def test_a_rank_that_is_not_known_is_no_lack_of_a_majority() -> None:
    dumps = job([[call(7, "failed")], [call(7, "failed", count=5)], [call(7, "failed", count=5)]])
    finding = only(blame([dump for dump in dumps if dump.rank != 1]), "called something else", 0, 2)
    assert finding.sentence == "the ranks called different operations as #7; what rank 1 called is not known"


def two_communicators(*, user: int = -1) -> List[RankDump]:
    """Rank 0 is in communicator 1, rank 1 in communicator 2. ``user``: a rank that is in its own code."""
    waits = {0: 1, 1: 2}
    return [
        dump(
            rank,
            [
                communicator(
                    rank, (0, 1), [open_call(1, 30.0, 1 - rank)] if waits[rank] == number else [], number=number
                )
                for number in (1, 2)
            ],
            size=2,
            stacks=LOADING if rank == user else IN_DDL,
        )
        for rank in (0, 1)
    ]


def test_deadlock_over_two_communicators() -> None:
    finding = only(blame(two_communicators()), "deadlock", 0, 1)
    assert finding.sentence == "rank 0 waits for rank 1, rank 1 waits for rank 0: none of them can go on"
    assert finding.evidence == (
        "rank 0 waits for rank 1 in allreduce #1 (4096 x float32, sum) of communicator 1 of 2 ranks for 30 s",
        "rank 1 waits for rank 0 in allreduce #1 (4096 x float32, sum) of communicator 2 of 2 ranks for 30 s",
    )


ENDED = {"size": 2, "state": "has ended", "exit": 1}


def failed_in(rank: int, number: int, failure: str, **times: float) -> CommunicatorRecord:
    """Return what one of two ranks has recorded of communicator ``number``; it has called in its own, ``rank`` + 1."""
    own = number == rank + 1
    calls = [call(1, "failed", awaited=1 - rank, **times)] if own else []
    return communicator(rank, (0, 1), calls, number=number, failure=failure if own else "")


@pytest.mark.parametrize("numbers", [(1, 2), ()], ids=["both are recorded", "what was never used is not"])
def test_deadlock_of_which_a_rank_has_given_up_first(numbers: Tuple[int, ...]) -> None:
    """It ends because of that, and the other one loses it before its own deadline."""
    failures = {
        0: "PeerLost: [rank 0/2 host a] allreduce #1: lost rank 1 (host a): it has shut down",
        1: "CollectiveTimeout: [rank 1/2 host a] allreduce #1: Timed out waiting for rank 0 (host a): it is late",
    }
    waited = {"begun": 60.0, "ended": 63.0}
    dumps = [
        dump(
            rank,
            [failed_in(rank, number, failures[rank], **waited) for number in (1, 2) if number in (*numbers, rank + 1)],
            **ENDED,
        )
        for rank in (0, 1)
    ]
    finding = only(blame(dumps), "deadlock", 0, 1)
    assert finding.sentence == "rank 0 waits for rank 1, rank 1 waits for rank 0: none of them can go on"


def test_deadlock_that_the_store_has_told() -> None:
    """It is told after a second, which is no long wait; the program goes on to other things with the error."""
    places = [
        "rank 0 waits in allreduce #1 (2 x float32, sum) at a.py:3 in f",
        "rank 1 waits in barrier() at a.py:9 in f",
    ]
    told = (
        f"the ranks wait for one another, and none of them can go on: {'; '.join(places)}; all ranks must make the same"
    )
    failure = "CollectiveMismatch: [rank {}/2 host a] allreduce #1: " + told + " calls in the same order"
    dumps = [
        dump(rank, [failed_in(rank, rank + 1, failure.format(rank), begun=90.0, ended=91.0)], size=2, stacks=LOADING)
        for rank in (0, 1)
    ]
    finding = only(blame(dumps), "deadlock", 0, 1)
    assert finding.sentence == "the ranks wait for one another, and none of them can go on"
    assert finding.evidence == tuple(places)


def test_no_deadlock_if_a_rank_computes_while_its_operation_is_under_way() -> None:
    only(blame(two_communicators(user=1)), "stuck in user code", 1)


def test_deadlock_of_messages() -> None:
    calls = [[message(1, "recv", (rank + 1) % 3, 20.0 + rank)] for rank in range(3)]
    finding = only(blame(job(calls)), "deadlock", 0, 1, 2)
    assert finding.evidence[0] == "rank 0 waits for rank 1 in recv #1 (4096 x float32, from rank 1) for 20 s"
    calls = [[message(1, "send", 1 - rank, 20.0)] for rank in range(2)]
    only(blame(job(calls)), "deadlock", 0, 1)


def test_a_message_that_the_other_side_has_not_called() -> None:
    calls = [[message(1, "recv", 1, 20.0)], []]
    only(blame(job(calls, dumps={1: {"stacks": LOADING}})), "stuck in user code", 1)
    calls[1] = [message(1, "send", 0, 20.0)]  # both are at it: it may be large
    assert blame(job(calls)) == []


def test_full_disk() -> None:
    lines = ["Traceback (most recent call last):", "OSError: [Errno 28] No space left on device: 'model.pt'"]
    end = JobEnd(4, None, 2, {}, {2: lines, 0: ["ddl.errors.PeerLost: lost rank 2"]})
    finding = only(blame(lost("it has shut down (its program ended)", exit=1), end), "full disk", 2)
    assert f"its last lines: {lines[1]}" in finding.evidence


NAN = (
    "ddl.errors.InvalidState: [rank 0/4 host a] check of step 7: the gradient of parameter '2.weight' at index (1, 0) "
    "is nan on rank 2, before anything is averaged. Look at the loss and the data of that rank"
)


def test_not_finite() -> None:
    dumps = job([[call(7)]] * 4, dumps=dict.fromkeys(range(4), {"exit": 1, "state": "has ended"}))
    finding = only(blame(dumps, JobEnd(4, None, 0, {}, {0: ["Traceback", NAN]})), "not finite", 2)
    assert finding.evidence[0] == NAN
    overflow = (
        "InvalidState: check of step 7: the gradients of x, [6e4, 6e4] by rank, add up to more than float16 holds"
    )
    only(blame(dumps, JobEnd(4, None, 0, {}, {3: [overflow]})), "not finite", 0, 1, 2, 3)


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


def test_a_lost_host() -> None:
    calls = all_wait_for(2)
    failed = {"failure": LOST + "its host does not answer", "closed": 99.0}
    dumps = job(calls, records={0: failed, 1: failed})[:2]
    finding = only(blame(dumps), "host lost", 2, 3)
    assert finding.host == "b" and finding.sentence == "host b is lost: none of its ranks has a dump (ranks 2, 3)"


def test_a_rank_without_a_dump() -> None:
    dumps = job(all_wait_for(2))
    del dumps[2]
    finding = only(blame(dumps), "unknown", 2)
    assert "there is no dump" in finding.sentence and "ddl dump --out" in finding.advice
    assert report(dumps, None, [finding])[0] == "4 ranks; there is no dump of rank 2"


def test_ranks_that_wait_for_data_of_one_another() -> None:
    """All have called it. That is what a large all-reduce looks like, too; so nobody is to blame."""
    calls = [[open_call(7, 20.0, (rank + 1) % 4)] for rank in range(4)]
    assert blame(job(calls)) == []
    calls = [[open_call(7, 40.0, (rank + 1) % 4)] for rank in range(4)]
    finding = only(blame(job(calls)), "unknown", 0, 1, 2, 3)
    assert "all ranks have called allreduce #7" in finding.sentence and "ddl doctor" in finding.advice


def test_a_rank_that_others_lost_but_that_lives() -> None:
    assert "others have lost rank 2" in only(blame(lost("connection reset")), "unknown", 2).sentence


def test_ranks_that_have_lost_one_another() -> None:
    failures = {rank: {"failure": f"PeerLost: barrier(): lost rank {1 - rank} (host b): no route"} for rank in range(2)}
    dumps = job([[call(6), call(7, "failed")]] * 2, records=failures)
    assert "ranks 0, 1 have lost one another" in only(blame(dumps), "unknown", 0, 1).sentence


def test_a_failure_that_nothing_explains() -> None:
    failed = {"failure": "ProtocolError: [rank 0/4 host a] a message of 3 bytes"}
    finding = only(blame(job([[call(7, "failed")]] * 4, records={0: failed})), "unknown", 0)
    assert finding.evidence == (f"rank 0: {failed['failure']}",)
    end = JobEnd(4, {"kind": "PeerLost", "culprit": 1, "reason": "no news"}, None)
    assert "do not show why" in only(blame(job([[call(7)]] * 4), end), "unknown", 1).sentence


def test_a_verdict_that_the_dumps_do_not_confirm_is_told_too() -> None:
    end = JobEnd(4, {"kind": "CollectiveTimeout", "culprit": 3, "reason": "rank 3 does not answer"}, 1)
    finding = only(blame(job(all_wait_for(2), dumps={2: {"state": "is stopped"}}), end), "stopped", 2)
    assert finding.evidence[-2:] == (
        "the job's store says something else: CollectiveTimeout: rank 3: rank 3 does not answer",
        "but the launcher says that the failure began with rank 1",
    )


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


def test_several_findings_and_what_is_printed() -> None:
    dumps = job(all_wait_for(2), dumps={2: {"stacks": LOADING}, 3: {"state": "is stopped"}})
    findings = blame(dumps)
    assert [finding.kind for finding in findings] == ["stopped", "stuck in user code"]
    lines = report(dumps, None, findings)
    assert lines[0].startswith("stopped: rank 3 (host a, pid 1003) is stopped")
    assert lines[-1].startswith("also stuck in user code: rank 2")
    assert len(lines) <= 15 and all(len(line) < 200 for line in lines)
    words = last_words(findings)
    assert words == [f"stopped: {findings[0].sentence}", *findings[0].evidence[:2], f"what to do: {findings[0].advice}"]
    assert last_words([]) == []


def test_what_is_printed_of_a_large_job() -> None:
    dumps = job(all_wait_for(200, 512), dumps={200: {"state": "is stopped"}})
    findings = blame(dumps)
    lines = report(dumps, None, findings)
    assert "    508 more ranks wait for it" in [
        line.replace("508 ranks more wait", "508 more ranks wait") for line in lines
    ]
    assert len(lines) <= 15


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


def test_no_dumps() -> None:
    assert blame([]) == []


def test_kinds_are_fixed() -> None:
    assert len(set(KINDS)) == len(KINDS) == 16
    with pytest.raises(InternalError):
        Finding("sleepy", (0,), "", "", (), "")
