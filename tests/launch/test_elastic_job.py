"""Elastic jobs on this machine: ranks that are no users of DDL fail, end, and are started anew. Real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, List

import pytest
from launch.launcher import Launcher, eventually, zombies_of

from ddl.launch.job.elastic_course import _ONE_CAUSE

pytestmark = pytest.mark.processes
Script = Callable[[str], str]
#: Ranks wait for files, so that what comes first is no matter of luck.
WAIT = """
here = os.path.dirname(__file__)
def wait(name):
    while not os.path.exists(os.path.join(here, name)):
        time.sleep(0.01)
def touch(name):
    open(os.path.join(here, name), "w").close()
"""


def lines_of(process: subprocess.Popen[str], count: int) -> List[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def wait_until_told(process: subprocess.Popen[str], pattern: str) -> str:
    """Wait until ddlrun has printed a line that matches; return all that it has printed so far."""
    assert process.stderr is not None
    lines = [process.stderr.readline()]
    while not re.search(pattern, lines[-1]):
        assert lines[-1], f"ddlrun has not said {pattern!r}, but {lines}"
        lines.append(process.stderr.readline())
    return "".join(lines)


def test_what_ranks_are_told(launcher: Launcher) -> None:
    done = launcher.run("-np", "2", "--elastic", "sh", "-c", 'echo "$DDL_ELASTIC $DDL_INCARNATION $DDL_SIZE"')
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[0] 1  2", "[1] 1  2"]
    other = launcher.run("-np", "1", "sh", "-c", 'echo "$DDL_ELASTIC $DDL_INCARNATION"', environ={"DDL_ELASTIC": "1"})
    assert other.stdout == "[0]  \n"


def test_a_rank_that_fails_does_not_end_the_job(launcher: Launcher, script: Script) -> None:
    text = """
if rank == 1:
    os.kill(os.getpid(), 9)
wait("go")
print("end", rank)
"""
    program = script(WAIT + text)
    process = launcher.start("-np", "3", "--min-np", "2", program)
    told = wait_until_told(process, "")
    assert re.fullmatch(r"ddlrun: rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\); 2 ranks are left\n", told)
    Path(program).with_name("go").touch()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0
    assert sorted(out.splitlines()) == ["[0] end 0", "[2] end 2"]
    lost = "ranks that were lost: 1; that left: 0; that came: 0, of which 0 in place of lost ones"
    assert err == f"ddlrun: {lost}\n"


def test_a_process_is_started_in_place_of_a_lost_one(launcher: Launcher, script: Script) -> None:
    text = """
if rank == 1:
    sys.exit(3)
if rank == 0:
    wait("came")
else:
    names = "INCARNATION RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE".split()
    print(*(os.environ["DDL_" + name] for name in names))
    touch("came")
    time.sleep(600)
"""
    done = launcher.run("-np", "2", "--elastic", "--max-restarts", "1", script(WAIT + text))
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["[2] 2 2 3 1 2 0 1"]
    told = re.sub(r"pid \d+", "pid", done.stderr).splitlines()
    assert told == [
        "ddlrun: rank 1 (pid) exited with status 3; 1 rank is left",
        "ddlrun: rank 2 (pid) was started",
        "ddlrun: rank 2 is to leave: the training has ended",  # nobody has told that it has become a rank
        "ddlrun: rank 2 (pid) was killed by signal 15 (SIGTERM), as it was to leave; 0 ranks are left",
        "ddlrun: ranks that were lost: 1; that left: 1; that came: 1, of which 1 in place of lost ones",
    ]


#: Processes fail one after the other. The last one waits.
SOME_FAIL = """
if rank == 0:
    wait("end")
elif rank < 5:
    sys.exit(3)
else:
    print(rank, flush=True)
    wait("end")
"""


@pytest.mark.slow
def test_of_lost_processes_none_is_kept(launcher: Launcher, script: Script) -> None:
    program = script(WAIT + SOME_FAIL)
    process = launcher.start("-np", "2", "--elastic", "--max-restarts", "100", program)
    assert lines_of(process, 1) == ["[5] 5\n"]
    assert eventually(lambda: not zombies_of(process.pid))
    Path(program).with_name("end").touch()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0 and "ranks that were lost: 4;" in err


def test_too_few_ranks_end_the_job_with_the_status_of_the_last_failure(launcher: Launcher, script: Script) -> None:
    text = """
if rank == 2:
    sys.exit(4)
if rank == 1:
    wait("go")
    print("last words", file=sys.stderr)
    sys.exit(5)
time.sleep(600)
"""
    program = script(WAIT + text)
    process = launcher.start("-np", "3", "--min-np", "2", program)
    wait_until_told(process, r"rank 2 \(pid \d+\) exited with status 4")
    time.sleep(_ONE_CAUSE + 0.1)  # the next failure has another cause
    Path(program).with_name("go").touch()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 5
    told = re.sub(r"pid \d+", "pid", err).splitlines()
    assert told[-3:] == [
        "ddlrun: 1 rank left, and --min-np is 2; --max-restarts 0 allows no other process in place of a lost one; the "
        "last change: rank 1 (pid) exited with status 5",
        "ddlrun: rank 1 (pid) exited with status 5; its last lines on stderr:",
        "    last words",
    ]


def test_ranks_that_fail_together_are_named_by_the_first(launcher: Launcher, script: Script) -> None:
    text = """
if rank == 1:
    sys.exit(4)
wait("go")
sys.exit(f"rank {rank} noticed")
"""
    program = script(WAIT + text)
    constants = {"ddl.launch.job.elastic_course._ONE_CAUSE": 100.0}  # on a slow machine that may be together, too
    process = launcher.start("-np", "3", "--elastic", program, constants=constants)
    wait_until_told(process, r"rank 1 \(pid \d+\) exited with status 4")
    Path(program).with_name("go").touch()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 4
    assert "no rank is left that holds the state of the training" in err
    assert re.search(r"ddlrun: rank 1 \(pid \d+\) exited with status 4\n$", err)


def test_a_failure_after_the_first_rank_has_ended_well_counts(launcher: Launcher, script: Script) -> None:
    program = script(WAIT + "wait('go') if rank == 1 else None; sys.exit(7 * rank)")
    process = launcher.start("-np", "2", "--elastic", "--verbose", program)
    wait_until_told(process, r"rank 0 \(pid \d+\) exited with status 0")
    Path(program).with_name("go").touch()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 7
    assert re.search(r"ddlrun: rank 1 \(pid \d+\) exited with status 7\n$", err)


def test_a_lost_rank_takes_its_children_along(launcher: Launcher, script: Script) -> None:
    text = """
if rank == 1:
    child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(child.pid, flush=True)
    wait("go")
    os._exit(1)
wait("end")
"""
    program = script(WAIT + text)
    process = launcher.start("-np", "2", "--elastic", program)
    child = int(lines_of(process, 1)[0].split()[1])
    Path(program).with_name("go").touch()
    assert eventually(lambda: child not in launcher.alive())
    assert process.poll() is None
    Path(program).with_name("end").touch()
    process.communicate(timeout=240)
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ddlrun_that_is_told_to_stop_ends_all(launcher: Launcher, script: Script, number: signal.Signals) -> None:
    process = launcher.start("-np", "2", "--elastic", "--max-restarts", "9", script("print('on'); time.sleep(600)"))
    lines_of(process, 2)
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 128 + number
    said = [line for line in err.splitlines() if not line.startswith("[")]
    assert said == [f"ddlrun: stopped by {number.name}"]  # nothing was started anew
    assert launcher.alive() == []


# --- ddlrun is killed ---

GO_ON = """
print("on", rank, flush=True)
wait("killed")
for number in range(5):
    print("out", rank, number, flush=True)
print("err", rank, file=sys.stderr, flush=True)
touch(f"end.{rank}")
"""


def test_ranks_go_on_when_ddlrun_is_killed_and_their_output_too(launcher: Launcher, script: Script) -> None:
    program = script(WAIT + GO_ON)
    process = launcher.start("-np", "2", "--elastic", program)
    lines_of(process, 2)
    process.kill()
    process.wait(240)
    time.sleep(0.2)
    assert len(launcher.alive()) == 3  # the ranks and the guard
    Path(program).with_name("killed").touch()
    out, err = process.communicate(timeout=240)  # to the end: nobody holds it open any longer
    assert sorted(out.splitlines()) == sorted(f"[{rank}] out {rank} {n}" for rank in range(2) for n in range(5))
    first, *rest = err.splitlines()
    assert first == (
        "ddlrun: ddlrun has ended without a word (killed?); 2 of its processes here go on without it; none is replaced "
        "any more"
    )
    assert sorted(rest) == ["[0] err 0", "[1] err 1"]
    assert all(Path(program).with_name(f"end.{rank}").exists() for rank in range(2))
    assert eventually(lambda: not launcher.alive())


def test_their_files_go_on_too(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    program = script(WAIT + GO_ON)
    process = launcher.start("-np", "2", "--elastic", "--output-dir", str(tmp_path / "logs"), program)
    files = [tmp_path / "logs" / f"rank.{rank}.out" for rank in range(2)]
    assert eventually(lambda: all(file.exists() and file.read_text() for file in files))
    process.kill()
    process.wait(240)
    Path(program).with_name("killed").touch()
    process.communicate(timeout=240)
    for rank, file in enumerate(files):
        assert file.read_text() == f"on {rank}\n" + "".join(f"out {rank} {number}\n" for number in range(5))


def test_a_reader_that_is_gone_does_not_disturb_them(launcher: Launcher, script: Script) -> None:
    """Print raises nothing, although nobody reads: ``ddlrun | head``, and both were killed."""
    program = script(WAIT + GO_ON)
    process = launcher.start("-np", "2", "--elastic", program)
    lines_of(process, 2)
    process.kill()
    process.wait(240)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    Path(program).with_name("killed").touch()
    assert eventually(lambda: all(Path(program).with_name(f"end.{rank}").exists() for rank in range(2)))
    assert eventually(lambda: not launcher.alive())


def test_the_guard_knows_the_newcomers_and_forgets_the_dead(launcher: Launcher, script: Script) -> None:
    text = """
if rank == 1:
    sys.exit(3)
print("on", rank, flush=True)
wait("killed")
print("still", rank, flush=True)
"""
    program = script(WAIT + text)
    process = launcher.start("-np", "2", "--elastic", "--max-restarts", "1", program)
    lines_of(process, 2)
    process.kill()
    process.wait(240)
    Path(program).with_name("killed").touch()
    out, err = process.communicate(timeout=240)
    assert sorted(out.splitlines()) == ["[0] still 0", "[2] still 2"]
    assert "2 of its processes here go on without it" in err


@pytest.mark.slow
def test_many_restarts_leave_no_descriptor_open(launcher: Launcher, script: Script) -> None:
    text = """
if rank == 0:
    wait("done")
elif rank == 40:
    touch("done")
else:
    os._exit(1)
"""
    program = script(WAIT + text)
    options = ("-np", "2", "--elastic", "--max-restarts", "39", "--blacklist-cooldown-range", "0.01", "0.01")
    process = launcher.start(*options, program)
    assert process.stderr is not None
    counts = []
    for line in process.stderr:
        if "was started" in line:
            counts.append(len(os.listdir(f"/proc/{process.pid}/fd")))
    process.communicate(timeout=240)
    assert process.returncode == 0 and len(counts) == 39
    # Pipes of a process or two may still be open; if each left a descriptor behind, there would be 30 more.
    assert max(counts[30:]) <= max(counts[:10]) + 10, counts
