"""Links between hosts that are slow or silent, in dumps of fabricated ranks on hosts of their own."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Sequence, Tuple

import pytest
from blame.fabricated import TAKEN, call, communicator, dump

from ddl.blame.finding import Finding
from ddl.blame.judge import blame
from ddl.records.connections import ConnectionView
from ddl.records.dump import RankDump

MB = 10**6
#: What a rank has sent to the next one of the ring, over a rail: megabytes, and seconds busy.
Sent = Tuple[float, float]


def view(rank: int, peer: int, rail: int, sent: Sent, watched: bool = False, **changes: Any) -> ConnectionView:
    low, high = sorted((rank, peer))
    ports = {low: 1000 + 10 * low + high, high: 2000 + 10 * low + high}
    local, remote = (f"10.77.{rail}.{number}:{ports[number]}" for number in (rank, peer))
    megabytes, busy = sent
    size = int(megabytes * MB)
    plain = ConnectionView(
        local, remote, size, 64 * MB, busy, unacknowledged=0, last_ack=0, round_trip=1e-4, sent_again=0
    )
    if watched:
        plain = dataclasses.replace(plain, window=1.0, acknowledged_in_window=size, busy_in_window=busy)
    return dataclasses.replace(plain, **changes)


def ring(sent: Sequence[Sent], *, rail: int = 0, watched: bool = False, **of_first: Any) -> List[RankDump]:
    """Return dumps of a ring of ranks. ``sent[r]``: to the next rank; back go a few bytes. ``of_first``: of rank 0."""
    size = len(sent)
    views: Dict[int, List[ConnectionView]] = {rank: [] for rank in range(size)}
    for rank in range(size):
        following = (rank + 1) % size
        changes = of_first if rank == 0 else {}
        views[rank].append(view(rank, following, rail, sent[rank], watched, **changes))
        views[following].append(view(following, rank, rail, (0.001, 0.004), watched))
    return dumps_of(views)


def dumps_of(views: Dict[int, List[ConnectionView]]) -> List[RankDump]:
    return [
        dump(
            rank,
            [communicator(rank, range(len(views)), [call(5)])],
            size=len(views),
            host=f"host{rank}",
            connections=tuple(views[rank]),
        )
        for rank in views
    ]


def only(findings: Sequence[Finding], kind: str) -> Finding:
    assert [finding.kind for finding in findings] == [kind], findings
    return findings[0]


def test_equal_links_are_well() -> None:
    assert blame(ring([(1000, 10.0)] * 4)) == []


@pytest.mark.parametrize("watched", [False, True])
def test_the_link_that_is_always_busy(watched: bool) -> None:
    """All carry the same."""
    megabytes = 10 if watched else 1000
    full, short = (1.0, 0.1) if watched else (TAKEN, TAKEN / 10)
    found_in = ring([(megabytes, short), (megabytes, full), (megabytes, short), (megabytes, short)], watched=watched)
    finding = only(blame(found_in), "slow link")
    assert finding.ranks == (1, 2) and finding.host == ""
    assert finding.sentence.startswith("the link from host host1 to host host2 (10.77.0.1 to 10.77.0.2) is slow: ")
    assert "others as busy reach 100 MB/s" in finding.sentence


def test_a_port_is_slow_both_ways() -> None:
    """What comes in is acknowledged late, as the acknowledgements go out by the slow port."""
    finding = only(blame(ring([(1000, 10.0), (1000, 90.0), (1000, 95.0), (1000, 10.0)])), "slow link")
    assert finding.host == "host2" and finding.ranks == (2,)
    assert finding.sentence.startswith("the links of host host2 are slow: ")
    assert len(finding.evidence) == 2


@pytest.mark.parametrize(
    "sent",
    [
        [(1000, 10.0), (1000, 25.0), (1000, 10.0), (1000, 10.0)],  # 2.5 times slower
        [(10, 0.1), (10, 80.0), (10, 0.1), (10, 0.1)],  # too little to tell
        [(100, 0.1), (1000, 80.0), (100, 0.1), (100, 0.1)],  # the others carry a tenth
        [(1000, 1.0), (1000, 20.0), (1000, 1.0), (1000, 1.0)],  # it is idle for four fifths of the time
    ],
    ids=["not slow enough", "too few bytes", "other work", "idle"],
)
def test_links_that_are_not_accused(sent: Sequence[Sent]) -> None:
    findings = blame(ring(sent))
    assert all("host1 to host host2" not in finding.sentence for finding in findings), findings


def test_rails_may_differ() -> None:
    """A rail is compared with itself on other hosts only."""
    views: Dict[int, List[ConnectionView]] = {
        0: [view(0, 1, 0, (4000, 40.0)), view(0, 1, 1, (1000, TAKEN))],
        1: [view(1, 0, 0, (4000, 40.0)), view(1, 0, 1, (1000, TAKEN))],
    }
    assert blame(dumps_of(views)) == []


def test_a_silent_rail() -> None:
    silent: Dict[str, Any] = {"unacknowledged": 12, "last_ack": 3.1}
    views: Dict[int, List[ConnectionView]] = {
        0: [view(0, 1, 0, (4000, 40.0)), view(0, 1, 1, (1000, 80.0), **silent)],
        1: [view(1, 0, 0, (4000, 40.0)), view(1, 0, 1, (1000, 80.0), **silent)],
    }
    finding = only(blame(dumps_of(views)), "link down")
    assert "10.77.1.0 to 10.77.1.1" in finding.sentence and "nothing was acknowledged for 3.1 s" in finding.sentence


def test_silence_of_a_whole_host_is_told_by_others() -> None:
    """There is no other rail that goes on: then the host may be lost, or stopped."""
    assert blame(ring([(1000, 10.0)] * 3, unacknowledged=9, last_ack=4.0)) == []
