"""Ranks that do not hear each other: the words of the job's store say so, and no rank is taken for dead."""

from __future__ import annotations

from blame.accused import lost, only
from blame.fabricated import call, job

from ddl.blame.judge import blame
from ddl.records.dump import JobEnd
from ddl.store.explanation import divide
from ddl.text.rank_names import FEW, name_ranks

WORDS = divide({(1, 2), (2, 1)}, {0: "a", 1: "a", 2: "b", 3: "c"}, name_ranks, 10)[2]


def test_of_the_ranks_that_were_told() -> None:
    end = JobEnd(4, {"kind": "PeerLost", "culprit": 2, "reason": WORDS}, 2)
    finding = only(blame(lost(WORDS, exit=1), end), "hosts apart", 2)
    assert finding.sentence == (
        "rank 2 (host b, pid 1002) and rank 1 have not heard each other for 10 s, though both reached the job's store"
    )
    assert finding.host == "b" and "ddl doctor" in finding.advice
    assert finding.evidence[0].startswith("rank 0: PeerLost: ") and WORDS in finding.evidence[0]
    assert finding.evidence[-1] == f"the job's store says the same: PeerLost: rank 2: {WORDS}"


def test_of_a_rank_that_many_do_not_hear() -> None:
    others = {0, 2, *range(4, 40, 2)}
    apart = {pair for other in others for pair in ((1, other), (other, 1))}
    words = divide(apart, {rank: str(rank) for rank in range(40)}, lambda ranks: name_ranks(sorted(ranks), FEW), 10)[1]
    assert "and 14 more have not heard" in words
    findings = blame([], JobEnd(40, {"kind": "PeerLost", "culprit": 1, "reason": words}, 1))
    assert "rank 1 and ranks 0, 2, 4, 6, 8, 10 and 14 more have not heard" in only(findings, "hosts apart", 1).sentence


def test_where_the_others_have_gone_on() -> None:
    end = JobEnd(4, {"kind": "PeerLost", "culprit": 2, "reason": WORDS}, 2)
    others = job([[call(6)] for _ in range(4)])[:2]
    finding = only(blame(others, end), "hosts apart", 2)
    assert finding.sentence.startswith("rank 2 and rank 1 have not heard each other for 10 s")


def test_what_was_long_before_explains_no_other_death() -> None:
    end = JobEnd(4, {"kind": "PeerLost", "culprit": 2, "reason": WORDS}, 2)
    assert blame(lost("its process ended", exit=-9), end)[0].kind == "dead"
