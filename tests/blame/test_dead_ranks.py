"""A rank or a host that has gone: how it died, and what its last lines say; what follows from that accuses nobody."""

from __future__ import annotations

from blame.accused import LOST, lost, only
from blame.fabricated import all_wait_for, call, communicator, dump, job

from ddl.blame.judge import blame
from ddl.records.dump import JobEnd


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
    for nothing, advice in ((None, "'dmesg', as root"), ("", "the kernel had memory left")):
        dead = only(blame(lost("its process ended", exit=-9, view={"out_of_memory": nothing})), "dead", 2)
        assert advice in dead.advice


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


def test_a_lost_host() -> None:
    calls = all_wait_for(2)
    failed = {"failure": LOST + "its host does not answer", "closed": 99.0}
    dumps = job(calls, records={0: failed, 1: failed})[:2]
    finding = only(blame(dumps), "host lost", 2, 3)
    assert finding.host == "b" and finding.sentence == "host b is lost: none of its ranks has a dump (ranks 2, 3)"
