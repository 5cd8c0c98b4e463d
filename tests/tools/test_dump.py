"""``ddl dump``: what it prints and writes of ranks that hang, and whom it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pickle
import re
import signal
import subprocess

import numpy as np
import pytest
import ranks

from ddl.records.dump import FORMAT, ProcessView, RankDump
from ddl.records.layout import CommunicatorRecord, LaneRecord, ProcessRecord, RecordedOperation, StepsRecord
from ddl.tools.cli import main
from ddl.tools.dump import command
from ddl.tools.dump.report import report

CALL = RecordedOperation(
    number=417,
    collective="allreduce",
    dtype="float32",
    op="sum",
    sizes_for="",
    root=0,
    count=4096,
    submitted=95.0,
    begun=96.0,
    ended=None,
    state="begun",
    awaited=1,
    pieces=4,
    pieces_ended=1,
    plan="ring",
    lane="large",
    label="bucket.4",
)
COMMUNICATOR = CommunicatorRecord(
    number=1 << 40,
    rank=0,
    ranks=(0, 5),
    submitted=417,
    submitted_messages=0,
    closed=None,
    failure="",
    lanes={"small": LaneRecord(0, 0.0, 0.0, None)},
    sent=((0, 0), (0, 0)),
    collectives=(CALL,),
    messages=(),
)
RANK = ProcessRecord(
    pid=42,
    identity={"rank": 3, "size": 8, "store": "10.0.0.1:4000", "job": "a"},
    monotonic=1.0,
    wall=2.0,
    unlisted=0,
    communicators=(COMMUNICATOR,),
)


def dump_of(record: ProcessRecord, state: str) -> RankDump:
    return RankDump(100.0, ProcessView(record.pid, state), record)


def printed(call: RecordedOperation) -> str:
    communicator = dataclasses.replace(COMMUNICATOR, collectives=(call,))
    return report([dump_of(dataclasses.replace(RANK, communicators=(communicator,)), "runs")], 3)[-1].strip()


def test_what_is_said_of_a_rank() -> None:
    assert report([dump_of(RANK, "is stopped")], 3, " on this host") == [
        "job 10.0.0.1:4000: 1 of its 8 ranks on this host",
        "rank 3 (pid 42) is stopped",
        "    all ranks: 417 collectives, 0 messages called",
        '        allreduce #417 "bucket.4" (4096 x float32, sum): under way for 4.0 s, 1 of 4 pieces done, '
        "waits for rank 5",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "submitted", "begun": None, "awaited": None, "pieces": 1}, ": under way for 5.0 s"),
        ({"state": "ended", "ended": 97.5}, ": ended 2.5 s ago after 1.5 s"),
        ({"state": "failed", "ended": 97.5, "begun": None, "submitted": None}, ": failed 2.5 s ago"),
        ({"state": "ended", "begun": None, "submitted": None}, ": ended"),
        ({"state": "ended", "submitted": None}, ": ended 4.0 s ago"),
    ],
)
def test_what_is_said_of_a_call(changes, said) -> None:
    assert printed(dataclasses.replace(CALL, **changes)) == 'allreduce #417 "bucket.4" (4096 x float32, sum)' + said


def test_where_a_rank_is_in_its_program_and_on_which_host() -> None:
    stacks = 'Current thread 0x1 (most recent call first):\n  File "/home/me/train.py", line 7 in load\n'
    identity = {**RANK.identity, "host": "b"}
    record = dataclasses.replace(RANK, identity=identity, communicators=(), steps=StepsRecord(7))
    dump = dataclasses.replace(dump_of(record, "sleeps"), stacks=stacks)
    assert report([dump], 3) == [
        "job 10.0.0.1:4000: 1 of its 8 ranks",
        "rank 3 (host b, pid 42) sleeps at /home/me/train.py, line 7, in load; step 7",
    ]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (StepsRecord(), ""),
        (StepsRecord(1), "; step 1"),  # its time is about to be written
        (StepsRecord(1, (97.5,)), "; step 1, ended 2.5 s ago"),
        (StepsRecord(417, (99.0, 99.25, 99.5, 99.8)), "; step 417, ended 200 ms ago, 250 ms each"),
        (StepsRecord(3, (10.0, 99.0, 100.5)), "; step 3, ended 0.0 µs ago, 45 s each"),  # since the record was read
    ],
)
def test_what_is_said_of_steps(steps: StepsRecord, said: str) -> None:
    record = dataclasses.replace(RANK, steps=steps, communicators=())
    assert report([dump_of(record, "sleeps")], 3)[1] == "rank 3 (pid 42) sleeps" + said


def test_failures_and_other_communicators() -> None:
    part = dataclasses.replace(
        COMMUNICATOR, number=7, failure="PeerLost: lost rank 5", closed=99.0, submitted_messages=2, collectives=()
    )
    process = dataclasses.replace(RANK, identity={}, communicators=(part,))
    assert report([dump_of(process, "sleeps")], 0, " on this host") == [
        "job without a store: 1 member on this host",
        "before init (pid 42) sleeps",
        "    communicator 7 of 2 ranks, closed 1.0 s ago: 417 collectives, 2 messages called",
        "        PeerLost: lost rank 5",
    ]


def dumped(folder):
    """Rank 1 is stopped before it calls what rank 0 waits in; rank 0 looks at both."""
    import ddl

    pids = ddl.world().allgather_object(os.getpid())
    ddl.barrier()
    ranks.meet()
    if ddl.rank() == 1:
        os.kill(pids[1], signal.SIGSTOP)
        ddl.allreduce_(np.ones(1 << 20, np.float32))
        return None
    work = ddl.world().allreduce_async_(np.ones(1 << 20, np.float32), name="bucket.3")
    while True:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            assert main(["dump", "--pid", str(pids[0]), "--pid", str(pids[1]), "--out", folder]) == 0
        if "is stopped" in out.getvalue() and "waits for rank 1" in out.getvalue():
            break
    os.kill(pids[1], signal.SIGCONT)
    work.wait()
    return out.getvalue()


@pytest.mark.processes
def test_ranks_of_a_job(tmp_path, capsys) -> None:
    text = ranks.run(2, dumped, str(tmp_path))[0]
    first, second = re.findall(r"^rank [01] .*(?:\n {4}.*)*", text, re.MULTILINE)
    assert re.search(
        r'allreduce #\d+ "bucket.3" \(1048576 x float32, average\): under way for .* waits for rank 1', first
    )
    assert " is stopped\n" in second and "barrier #" in second.splitlines()[-1] and "under way" not in second
    content = json.loads((tmp_path / "rank.1.json").read_text())
    assert content["format"] == FORMAT and content["process"]["state"] == "is stopped"
    assert content["record"]["identity"]["rank"] == 1
    assert content["record"]["communicators"][0]["collectives"][-1]["collective"] == "barrier"
    assert (tmp_path / "rank.0.json").exists()
    assert main(["dump", "--from", str(tmp_path), "--out", str(tmp_path), "--fr-trace"]) == 0
    again = capsys.readouterr().out
    assert " is stopped" in again and "waits for rank 1" in again and "on this host" not in again
    traces = [pickle.loads((tmp_path / f"fr_trace.{rank}").read_bytes()) for rank in range(2)]
    assert [trace["entries"][-1]["profiling_name"].split(":")[1] for trace in traces] == ["all_reduce", "barrier"]


def test_a_process_that_is_no_rank(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        assert main(["dump", "--pid", str(other.pid)]) == 2
        other.kill()
    text = f"ddl dump: --pid {other.pid}: it has ended, or is no rank"
    assert text in capsys.readouterr().err
    assert main(["dump", "--pid", str(other.pid)]) == 2  # it has ended
    assert text in capsys.readouterr().err


def test_only_one_source(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "4711", "--from", str(tmp_path)]) == 2
    assert "--from a folder; give one of them" in capsys.readouterr().err
    assert main(["dump", "--from", str(tmp_path)]) == 2
    assert f"{tmp_path}: it has no dumps of ranks" in capsys.readouterr().err


def test_a_number_that_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "--last", "-1"]) == 2
    assert "--last -1: it must be 0 or more" in capsys.readouterr().err


def test_files_for_pytorch_need_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "--fr-trace"]) == 2
    assert "--fr-trace: it writes files, so --out DIR must say where" in capsys.readouterr().err


@pytest.mark.parametrize("changes", [{"job": "b", "rank": 4}, {}])
def test_files_are_of_one_job(changes, tmp_path, monkeypatch, capsys) -> None:
    """Two jobs may have a rank of the same number."""
    other = dataclasses.replace(RANK, pid=43, identity={**RANK.identity, **changes})
    monkeypatch.setattr(command, "_of_host", lambda pids: [dump_of(RANK, "runs"), dump_of(other, "runs")])
    assert main(["dump", "--out", str(tmp_path)]) == 2
    assert "ranks of several jobs are on this host; name all of one job" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
