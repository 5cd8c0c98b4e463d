"""What ddlrun keeps of the ranks of a job that has failed, or that somebody asks about."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List

import pytest
from launch.launcher import PATIENT, Launcher, eventually

from ddl.errors import ProtocolError
from ddl.launch.agent.dumps import DumpPieces, dump_folder, pieces_of, write_dumps
from ddl.records.dump import FORMAT, JobEnd, ProcessView, RankDump, dump_message, parse_dump, parse_end
from ddl.records.layout import CommunicatorRecord, LaneRecord, ProcessRecord, RecordedOperation, StepsRecord

pytestmark = pytest.mark.processes
Script = Callable[[str], str]
HERE = ("-np", "2")
TWO_HOSTS = ("-H", "localhost:1,127.0.0.1:1")

TRAIN = """
import ddl, numpy as np
ddl.init()
batch = np.ones(10, np.float32)
for step in range(20):
    ddl.allreduce_(batch)
    if step == 10 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""

CALL = RecordedOperation(
    *(7, "allreduce", "float32", "sum", "", -1, 10, 1.5, None, None, "begun", 1, 4, 1, "ring", "large", "bucket.4")
)
RECORD = ProcessRecord(
    pid=42,
    identity={"rank": 3, "host": "a"},
    monotonic=1.0,
    wall=2.0,
    unlisted=0,
    communicators=(
        CommunicatorRecord(
            *(5, 0, (0, 3), 7, 0, None, "", {"small": LaneRecord(1, 0.5, 1.0, None)}, ((0, 0), (3, 4096)), (CALL,), ())
        ),
    ),
    steps=StepsRecord(417, (8.5, 9.75)),
)
DUMP = RankDump(10.0, ProcessView(42, "sleeps", "futex_wait", 1.5, 0.1), RECORD, stacks="Thread")


def folder_in(err: str) -> Path:
    """Return the folder that ddlrun has named, once."""
    (path,) = re.findall(
        r"^ddlrun: to see what each rank did last, and who is to blame: ddl blame (\S+)$", err, re.MULTILINE
    )
    return Path(path)


def dumps_in(folder: Path) -> Dict[int, RankDump]:
    dumps = [parse_dump(json.loads(path.read_text())) for path in folder.glob("rank.*.json")]
    return {dump.number: dump for dump in dumps}


def last_call(dump: RankDump) -> str:
    return dump.record.communicators[0].collectives[-1].text


@pytest.mark.parametrize("hosts", [HERE, TWO_HOSTS])
def test_a_failed_job_leaves_the_dumps_of_all_ranks(launcher: Launcher, script: Script, hosts: List[str]) -> None:
    done = launcher.run(*hosts, script(TRAIN), constants=PATIENT)
    assert done.returncode == 137
    folder = folder_in(done.stderr)
    assert folder.parent == dump_folder(None, os.environ)
    dumps = dumps_in(folder)
    assert sorted(dumps) == [0, 1]
    assert {rank: dump.exit for rank, dump in dumps.items()} == {0: 1, 1: -signal.SIGKILL}
    assert {dump.process.state for dump in dumps.values()} == {"has ended"}
    assert {dump.record.communicators[0].submitted for dump in dumps.values()} <= {11, 12}
    assert last_call(dumps[1]) == "allreduce(10 x float32, average)"
    end = parse_end(json.loads((folder / "job.json").read_text()))
    assert (end.size, end.first) == (2, 1) and end.verdict is not None and end.verdict["culprit"] == 1
    assert "was killed by signal 9" in end.exits[1]
    assert "PeerLost" in end.last_lines[0][-1]


def test_a_rank_that_raises_leaves_what_it_did(launcher: Launcher, script: Script) -> None:
    program = script(TRAIN.replace("os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError(step)"))
    done = launcher.run(*HERE, program, constants=PATIENT)
    dumps = dumps_in(folder_in(done.stderr))
    assert {rank: dump.exit for rank, dump in dumps.items()} == {0: 1, 1: 1}
    assert dumps[1].record.communicators[0].submitted == 11


STUCK = """
import ddl, numpy as np
ddl.init()
print("begun")
def reads_forever():
    open(__file__ + ".reads", "w").close()
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
ddl.allreduce_(np.ones(3))
if rank == 1:
    reads_forever()
while not os.path.exists(__file__ + ".reads"):
    time.sleep(0.01)
if len(sys.argv) > 2:
    ddl.world().set_timeout(float(sys.argv[2]))
ddl.allreduce_(np.ones(4))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("hosts", [HERE, TWO_HOSTS])
def test_sigquit_shows_what_a_job_does_and_ends_nothing(
    launcher: Launcher, script: Script, hosts: List[str], tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    job = launcher.start(*hosts, "--dump-dir", str(tmp_path / "dumps"), script(STUCK), str(go_on))
    assert job.stdout is not None and job.stdout.readline().endswith("begun\n")
    dumps: Dict[int, RankDump] = {}

    def stuck() -> bool:
        job.send_signal(signal.SIGQUIT)
        line = next_line(job)
        if "no rank" in line:  # yet
            return False
        dumps.update(dumps_in(folder_in(line)))
        there = len(dumps) == 2 and "in reads_forever" in dumps[1].stacks and "in allreduce_" in dumps[0].stacks
        # Records are read some milliseconds before the stacks are written.
        calls = [dump.record.communicators[0].collectives for _, dump in sorted(dumps.items())]
        return there and all(calls) and calls[0][-1].number > calls[1][-1].number and calls[0][-1].awaited == 1

    assert eventually(stuck)
    assert last_call(dumps[1]) == "allreduce(3 x float64, average)"
    waiting = dumps[0].record.communicators[0].collectives[-1]
    assert waiting.text == "allreduce(4 x float64, average)" and not waiting.over
    assert all(dump.exit is None and dump.process.cpu_seconds for dump in dumps.values())
    go_on.touch()
    assert job.wait(60) == 0


#: Rank 1 has all the time that it needs to say what it does.
ANSWERS = {"ddl.records.stacks.PATIENCE": 100.0}


@pytest.mark.few(1)
@pytest.mark.parametrize("hosts", [HERE, TWO_HOSTS])
def test_a_job_that_ends_badly_says_who_is_to_blame(
    launcher: Launcher, script: Script, hosts: List[str], tmp_path: Path
) -> None:
    """Rank 1 is in the user's code at the others' deadline. ddlrun ends it, which is nobody's fault."""
    done = launcher.run(*hosts, script(STUCK), str(tmp_path / "never"), "1", constants=ANSWERS)
    lines = [line for line in done.stderr.splitlines() if line.startswith("ddlrun: ") and "warning" not in line]
    words = lines[-5:]
    assert words[0].startswith("ddlrun: stuck in user code: rank 1 (host ") and "in reads_forever; 1 rank" in words[0]
    assert "in reads_forever" in words[1] and "in <module>" in words[2] and "what to do: " in words[3]
    assert dumps_in(folder_in(done.stderr))[1].exit is None


def test_ddl_dump_shows_a_whole_job(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    job = launcher.start(*TWO_HOSTS, script(STUCK), str(go_on))
    assert job.stdout is not None and job.stdout.readline().endswith("begun\n")
    tool = [sys.executable, "-m", "ddl.tools"]

    def dumped() -> bool:
        out = str(tmp_path / "dumps")
        done = subprocess.run([*tool, "dump", str(job.pid), "--out", out], capture_output=True, text=True, check=False)
        return len(re.findall(r"^rank [01] \(host .*, pid \d+\)", done.stdout, re.MULTILINE)) == 2

    assert eventually(dumped)
    blamed = subprocess.run([*tool, "blame", str(tmp_path / "dumps")], capture_output=True, text=True, check=True)
    assert blamed.stdout.startswith(("no rank is to blame", "stuck in user code: rank 1"))
    go_on.touch()
    assert job.wait(60) == 0
    done = subprocess.run([*tool, "dump", str(job.pid)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"process {job.pid} is no ddlrun of this user on this host" in done.stderr


def test_a_job_that_waits_for_its_hosts_has_nothing_to_show(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.sh"
    hosts.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    hosts.chmod(0o755)
    job = launcher.start(
        "--host-discovery-script", str(hosts), "--min-np", "2", "--start-timeout", "20", script("pass")
    )
    assert eventually((tmp_path / "asked").exists)
    assert next_line(job).startswith("ddlrun: waiting for 2 slots to begin; ")
    job.send_signal(signal.SIGQUIT)
    assert next_line(job) == "ddlrun: no rank runs yet\n"
    tool = [sys.executable, "-m", "ddl.tools", "dump", str(job.pid)]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no rank runs yet" in done.stderr
    job.terminate()
    assert job.wait(60) == 128 + signal.SIGTERM


def next_line(job: subprocess.Popen[str]) -> str:
    assert job.stderr is not None
    while not (line := job.stderr.readline()).startswith("ddlrun: ") or "warning" in line:
        assert line, "ddlrun has ended"
    return line


@pytest.mark.few(1)
@pytest.mark.parametrize("hosts", [("-np", "3"), ("-H", "localhost:2,127.0.0.1:1")])
def test_an_elastic_job_leaves_dumps_of_each_failure_and_goes_on(
    launcher: Launcher, script: Script, hosts: List[str]
) -> None:
    train = """
import ddl, numpy as np
from ddl.elastic import ObjectState, run
state = ObjectState(step=0)
@run
def train(state):
    while state.step < 40:
        ddl.allreduce_(np.ones(10))
        if state.step == 10 and ddl.rank() == 1 and ddl.size() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        state.step += 1
        state.commit()
        time.sleep(0.02)
ddl.init()
train(state)
"""
    done = launcher.run(*hosts, "--min-np", "2", "--max-restarts", "0", script(train))
    assert done.returncode == 0, done.stderr
    dumps = dumps_in(folder_in(done.stderr))
    assert sorted(dumps) == [0, 1, 2] and dumps[1].exit == -signal.SIGKILL
    assert dumps[0].exit is None and dumps[0].process.state in ("runs", "sleeps")


def test_a_program_without_ddl_leaves_none(launcher: Launcher, script: Script) -> None:
    done = launcher.run(*HERE, script("sys.exit(3)"))
    assert done.returncode == 3 and "ddl blame" not in done.stderr


def test_dumps_that_cannot_be_written_change_nothing_else(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = launcher.run(*HERE, "--dump-dir", str(tmp_path / "file"), script(TRAIN))
    assert done.returncode == 137
    assert done.stderr.splitlines()[-1].startswith("ddlrun: what the ranks did last cannot be written: ")


def test_only_the_last_folders_stay(tmp_path: Path) -> None:
    (tmp_path / "somebody else's").mkdir()
    folders = [write_dumps(tmp_path, [DUMP], JobEnd(size=4)) for _ in range(23)]
    assert len(set(folders)) == 23
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["somebody else's", *(folder.name for folder in folders[3:])]
    )


def test_dumps_and_ends_come_back_as_they_were(tmp_path: Path) -> None:
    end = JobEnd(4, {"kind": "PeerLost", "culprit": 3, "reason": "gone"}, 3, {3: "killed"}, {3: ["last words"]})
    folder = write_dumps(tmp_path, [DUMP], end)
    assert parse_dump(json.loads((folder / "rank.3.json").read_text())) == DUMP
    assert parse_end(json.loads((folder / "job.json").read_text())) == end


def test_a_large_dump_comes_in_pieces() -> None:
    calls = tuple(dataclasses.replace(CALL, number=n, label=os.urandom(24).hex()) for n in range(20_000))
    communicator = dataclasses.replace(RECORD.communicators[0], collectives=calls)
    dump = dataclasses.replace(DUMP, record=dataclasses.replace(RECORD, communicators=(communicator,)))
    pieces = [json.loads(json.dumps(piece)) for piece in pieces_of(dump)]
    assert len(pieces) > 1
    whole = DumpPieces("a")
    assert [whole.add(piece) for piece in pieces] == [None] * (len(pieces) - 1) + [dump]
    (small,) = pieces_of(DUMP)
    assert whole.add(small) == DUMP
    with pytest.raises(ProtocolError, match="host a sent a dump that cannot be read"):
        whole.add({**small, "data": small["data"][5:]})


@pytest.mark.parametrize(
    "broken", [{}, {"format": 9}, {**dump_message(DUMP), "record": 3}, {"format": FORMAT, "taken": 1}]
)
def test_what_is_no_dump_is_refused(broken: Dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match=r"no dump|has format 9"):
        parse_dump(broken)
    with pytest.raises(ProtocolError, match=r"no end of a job|has format 9"):
        parse_end(broken)
