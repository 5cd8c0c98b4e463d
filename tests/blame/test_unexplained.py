"""Findings where the dumps do not show the cause, or a rank has no dump."""

from __future__ import annotations

from blame.accused import lost, only
from blame.fabricated import all_wait_for, call, job, open_call

from ddl.blame.judge import blame
from ddl.blame.report import report
from ddl.records.dump import JobEnd


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


def test_no_dumps() -> None:
    assert blame([]) == []
