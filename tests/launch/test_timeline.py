"""``ddlrun --timeline`` and ``ddl timeline``: what they say of real jobs, and of files that are none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Callable, List

import pytest
from launch.launcher import Launcher, eventually
from launch.test_elastic_training import train_and_replace
from timelines import events_of, names, slices, summary, totals

from ddl.tools.cli import main

pytestmark = pytest.mark.processes
Script = Callable[[str], str]
STEPS = 20
SLEEP = 0.04  #: seconds of each step that rank 1 is late

TRAIN = f"""
import torch, ddl_torch
torch.manual_seed(0)
torch.set_num_threads(1)
ddl_torch.init()
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
optimizer = ddl_torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
for step in range({STEPS}):
    if rank == 1:
        time.sleep({SLEEP})
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
"""

OVERLAP = """
import numpy as np, ddl
from ddl.adapter.step_record import note_step
ddl.init()
arrays = [np.ones(1000, np.float32) for _ in range(2)]
for step in range(20):
    time.sleep(0.01)
    first = ddl.world().allreduce_async_(arrays[0], name="early")
    if rank == 0:
        while not os.path.exists(f"{sys.argv[1]}.{step}"):
            time.sleep(0.001)
        time.sleep(0.03)  # rank 1 has called the second one by now
    second = ddl.world().allreduce_async_(arrays[1], name="late")
    if rank == 1:
        open(f"{sys.argv[1]}.{step}", "w").close()
    first.wait()
    second.wait()
    note_step()
"""

FOREVER = """
import numpy as np, ddl
from ddl.adapter.step_record import note_step
ddl.init()
for step in range(10**9):
    time.sleep(0.002)
    ddl.allreduce_(np.ones(1000))
    note_step()
    if step == 300:
        print("begun", flush=True)
"""


def start(launcher: Launcher, *arguments: str) -> subprocess.Popen[str]:
    """Start a job; return when it has made some steps."""
    process = launcher.start(*arguments)
    assert process.stdout is not None and process.stdout.readline().endswith("begun\n")
    return process


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [("-np", "2"), ("-H", "localhost:1,127.0.0.1:1")], ids=["here", "hosts"])
def test_a_training_job(launcher: Launcher, script: Script, tmp_path: Path, hosts: List[str]) -> None:
    file = tmp_path / "trace.json"
    done = launcher.run(*hosts, "--timeline", str(file), script(TRAIN))
    assert done.returncode == 0, done.stderr
    events = events_of(file)
    assert [name[:8] for name in sorted(names(events))] == ["rank 000", "rank 001"]
    steps = slices(events, "step")
    assert len(steps) == 2 * (STEPS - 1) and steps[0]["name"] == "step 2"
    assert totals(events)["missing"] == totals(events)["impossible"] == totals(events)["partial"] == 0
    told = json.loads(summary(file, "--json"))
    assert told["whole"] and told["step"]["count"] == len(steps)
    assert 1e6 * SLEEP < told["step"]["median_us"]
    late = told["late"][0]
    assert late["rank"] == 1 and late["others_waited_us"] > 0.5e6 * SLEEP * STEPS, told["late"]
    bucket = next(each for each in told["operations"] if each["count"] >= STEPS)
    assert bucket["collective"] == "allreduce" and bucket["bytes"] > 64 * 512 * 4
    text = summary(file)
    assert "a step takes " in text and "rank 001 (host" in text
    assert hosts[0] == "-np" or "no rank has ended before" in text  # on one host the last caller reads no clock
    assert all(len(line) <= 120 for line in text.splitlines()[1:]), text


def test_where_the_time_goes(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    """Rank 1 waits 30 ms or more in each step, for rank 0. tests/tools/test_timeline_summary.py has exact numbers."""
    file = tmp_path / "trace.json"
    done = launcher.run("-np", "2", "--timeline", str(file), script(OVERLAP), str(tmp_path / "called"))
    assert done.returncode == 0, done.stderr
    events_of(file)
    told = json.loads(summary(file, "--json"))
    step = told["step"]
    assert 40e3 < step["median_us"] <= step["p99_us"]
    assert abs(step["exposed_us"] + step["hidden_us"] - step["communication_us"]) < 1
    assert 10e3 < step["exposed_waiting_us"] < step["exposed_us"] + 1  # the mean of two ranks, of which one waits 30 ms
    operations = {each["name"]: each for each in told["operations"]}
    assert operations["late"]["count"] == 20 and operations["late"]["bytes"] == 4000
    assert 10e3 < operations["late"]["waiting_us"]
    assert told["late"][0]["rank"] == 0
    assert 0.55e6 < told["late"][0]["others_waited_us"]  # 20 times 30 ms, and what the machine adds


def test_horovods_timeline_lives_beside_it(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    files = [tmp_path / "all.json", tmp_path / "horovod.json"]
    program = script("import numpy as np, ddl; ddl.init(); ddl.allreduce_(np.ones(9)); ddl.barrier()")
    done = launcher.run("-np", "2", "--timeline", str(files[0]), "--timeline-filename", str(files[1]), program)
    assert done.returncode == 0, done.stderr
    assert totals(events_of(files[0]))["calls"] > 0
    assert files[1].read_text().startswith("[\n")


@pytest.mark.few(1)
@pytest.mark.parametrize("victim", ["rank", "ddlrun"])
def test_a_killed_job_can_be_read(
    launcher: Launcher, script: Script, tmp_path: Path, victim: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    job = start(launcher, "-np", "2", "--timeline", str(file), script(FOREVER))
    assert eventually(lambda: steps_read(file, 300) == 2)
    if victim == "ddlrun":
        job.kill()
        job.wait(240)
        with open(file, "ab") as cut:
            cut.write(b'{"ph":"X","name":"half of a li')
    else:
        ranks = [pid for pid in launcher.alive() if pid != job.pid and b"program.py" in command_of(pid)]
        os.kill(ranks[-1], signal.SIGKILL)
        _, err = job.communicate(timeout=240)
        assert job.returncode == 128 + signal.SIGKILL, err
    events = events_of(file)
    tracks = {event["pid"] for event in slices(events, "step")}
    assert len(tracks) == len(names(events)) == 2
    for track in tracks:
        steps = [event["args"]["step"] for event in slices(events, "step") if event["pid"] == track]
        assert steps == sorted(set(steps)) and steps[-1] >= 300
        assert len(steps) > 20  # of a rank, 64 steps are remembered: 130 ms here, and ddlrun may look later than that
    assert main(["timeline", str(file)]) == 0
    said = capsys.readouterr().out
    assert ("its end is missing" in said) == (victim == "ddlrun")
    assert ("killed by signal 9" in said) == (victim == "rank")
    assert ("verdict: PeerLost began with rank" in said) == (victim == "rank")


def steps_read(file: Path, least: int) -> int:
    """Return of how many ranks the file has this step or a later one; ddlrun may have been too late for some."""
    lines = [json.loads(line.rstrip(",")) for line in file.read_text().split("\n")[1:-1]]
    return len({event["pid"] for event in lines if event.get("cat") == "step" and event["args"]["step"] >= least})


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


#: The last 2,048 operations of a rank are read in any case: these are more than there is room for.
FILL = """
import numpy as np, ddl
ddl.init()
going = np.ones(1)
while going[0] == 1:
    for work in [ddl.world().allreduce_async_(np.ones(9)) for _ in range(20)]:
        work.wait()
    going[:] = os.path.getsize(sys.argv[1]) < 900_000
    ddl.allreduce_(going, op=ddl.Min)
for _ in range(75):
    for work in [ddl.world().allreduce_async_(np.ones(9)) for _ in range(20)]:
        work.wait()
"""


def test_the_file_is_bounded(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    done = launcher.run("-np", "2", "--timeline", str(file), "--timeline-mb", "1", script(FILL), str(file))
    assert done.returncode == 0, done.stderr
    assert f"ddlrun: the timeline {file} ends here: it has its 1 MB (--timeline-mb)" in done.stderr
    assert 900_000 < file.stat().st_size <= 1_000_000
    assert events_of(file)[-2]["name"] == "the timeline ends here: it is full (--timeline-mb)"
    assert "and its end is missing" in summary(file)


BURST = """
import numpy as np, ddl
ddl.init()
world = ddl.world()
world.allreduce_async_(np.ones(100), name="small").wait()
open(f"{sys.argv[1]}begun.{rank}", "w").close()
print("begun", flush=True)
for burst in range(2):
    while not os.path.exists(sys.argv[1] + str(burst)):
        time.sleep(0.01)
    for _ in range(100):
        for work in [world.allreduce_async_(np.ones(100), name="small") for _ in range(30)]:
            work.wait()
    open(f"{sys.argv[1]}{burst}.{rank}", "w").close()
"""


def test_operations_that_nobody_has_read_are_counted(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    """The launcher is stopped while 3,000 operations go through a ring of 2,048."""
    file, go = tmp_path / "trace.json", tmp_path / "go."
    job = start(launcher, "-np", "2", "--timeline", str(file), script(BURST), str(go))
    assert eventually(lambda: all((tmp_path / f"go.begun.{rank}").exists() for rank in range(2)))  # init needs ddlrun
    job.send_signal(signal.SIGSTOP)
    (tmp_path / "go.0").touch()
    assert eventually(lambda: all((tmp_path / f"go.0.{rank}").exists() for rank in range(2)))
    job.send_signal(signal.SIGCONT)
    (tmp_path / "go.1").touch()
    _, err = job.communicate(timeout=240)
    assert job.returncode == 0, err
    events = events_of(file)
    sums = totals(events)
    assert sums["missing"] >= 2 * (3000 - 2048)
    assert sums["calls"] + sums["quick"] + sums["missing"] == 2 * 6001
    assert any("calls of this rank are missing before here" in event["name"] for event in events if event["ph"] == "i")
    assert f"missing: {sums['missing']} calls and 0 steps" in summary(file)


@pytest.mark.few(1)
@pytest.mark.parametrize("hosts", [("-np", "2"), ("-H", "localhost:1,127.0.0.1:1")], ids=["here", "hosts"])
def test_a_full_disk(launcher: Launcher, script: Script, hosts: List[str]) -> None:
    program = script(FOREVER.replace("10**9", "400"))
    done = launcher.run(*hosts, "--timeline", "/dev/full", program)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the timeline /dev/full ends here, as it cannot be written") == 1, done.stderr
    assert "No space left on device; the job goes on" in done.stderr


def test_a_file_that_cannot_be_made(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    done = launcher.run("-np", "2", "--timeline", str(tmp_path / "no" / "file"), script("print('never')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "ddlrun: --timeline " in done.stderr and "No such file or directory" in done.stderr
    os.mkfifo(tmp_path / "pipe")
    done = launcher.run("-np", "2", "--timeline", str(tmp_path / "pipe"), script("print('never')"))
    assert done.returncode == 2 and "it cannot be written: [Errno 6] No such device or address" in done.stderr
    done = launcher.run("-np", "2", "--timeline-mb", "3", script("print('never')"))
    assert done.returncode == 2 and "--timeline-mb bounds the file of --timeline" in done.stderr


@pytest.mark.slow
def test_ranks_get_new_numbers(launcher: Launcher, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    train_and_replace(launcher, tmp_path, "--timeline", str(file))
    events = events_of(file)
    tracks = {name.replace(f"host {os.uname().nodename}", "host h") for name in names(events)}
    assert {"rank 001 (host h)", "rank 001 (host h, process 2)", "rank 002 (host h, process 3)"} <= tracks, tracks
    calls = [event["args"] for event in slices(events, "allreduce")]
    assert len({call["communicator"] for call in calls}) > 1
    told = [(call["communicator"], call["rank"], call["n"]) for call in calls]
    assert len(told) == len(set(told))  # also of processes that are in several generations
    assert any(event["ph"] == "i" and "killed by signal 9" in event["name"] for event in events)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is no timeline"),
        ("hello\n", "it is no timeline"),
        ("[\n", "the timeline is empty"),
        ('[\n{"ph":"M","name":"thread_name","pid":0,"tid":1,"ts":0,"args":{"name":"x"}},\n', "write Horovod's"),
        ('[\n{"ph":"M","name":"ddl_timeline","args":{"format":99}},\n', "has format 99, this ddl reads format 1"),
        ('[\n{"ph":"M","name":"ddl_timeline","args":{"format":1}},\nrubbish\n', "line 3 is no event of a timeline"),
        ('[\n{"ph":"M","name":"ddl_timeline","args":{"format":1}},\n[]\n', "line 3 is no event of a timeline"),
    ],
)
def test_files_that_are_none(text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.json"
    file.write_text(text)
    assert main(["timeline", str(file)]) == 2
    assert problem in capsys.readouterr().err
    assert main(["timeline", str(tmp_path / "none")]) == 2
    assert "it cannot be read" in capsys.readouterr().err
