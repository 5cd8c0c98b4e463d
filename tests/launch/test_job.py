"""Whole jobs: what a user sees of ``ddlrun`` when all goes well, and when a rank fails."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Tuple

import pytest
from launch.launcher import PATIENT, ROOT, Launcher, eventually

pytestmark = pytest.mark.processes
Script = Callable[[str], str]


def test_every_line_has_its_ranks_prefix(launcher: Launcher, script: Script) -> None:
    program = script("print('out', rank, sys.argv[1:]); print('err', rank, file=sys.stderr); print('end', end='')")
    done = launcher.run("-np", "3", program, "-x", "two words")
    assert done.returncode == 0
    expected = [f"[{rank}] {text}" for rank in range(3) for text in (f"out {rank} ['-x', 'two words']", "end")]
    assert sorted(done.stdout.splitlines()) == sorted(expected)
    assert sorted(done.stderr.splitlines()) == [f"[{rank}] err {rank}" for rank in range(3)]


def test_one_rank(launcher: Launcher, script: Script) -> None:
    done = launcher.run("-np", "1", script("print(rank, size, os.environ.get('OMP_NUM_THREADS'))"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0] 0 1 None\n", "")


def test_without_prefix(launcher: Launcher) -> None:
    done = launcher.run("--no-prefix", "-np", "2", "echo", "same")
    assert (done.returncode, done.stdout) == (0, "same\nsame\n")


def test_files_and_of_rank_0_the_terminal_too(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    program = script("print('out', rank); print('err', rank, file=sys.stderr); sys.exit(rank)")
    done = launcher.run("-np", "2", "--output-dir", str(tmp_path / "new" / "logs"), program)
    assert done.returncode == 1 and done.stdout == "[0] out 0\n" and done.stderr.startswith("[0] err 0\n")
    for rank in range(2):
        for name in ("out", "err"):
            assert (tmp_path / "new" / "logs" / f"rank.{rank}.{name}").read_text() == f"{name} {rank}\n"
    assert done.stderr.endswith("exited with status 1; its last lines on stderr:\n    err 1\n")
    blocked = launcher.run("-np", "2", "--output-dir", "/proc/nowhere", program)
    assert blocked.returncode == 2 and "/proc/nowhere" in blocked.stderr


def test_output_is_live(launcher: Launcher, script: Script) -> None:
    process = launcher.start("-np", "2", script("print('now'); input() if rank == 0 else None"), stdin=-1)
    assert process.stdout is not None and process.stdin is not None
    lines = {process.stdout.readline(), process.stdout.readline()}  # while rank 0 still waits
    assert lines == {"[0] now\n", "[1] now\n"}
    assert process.poll() is None
    process.communicate("\n", timeout=240)
    assert process.returncode == 0


def test_only_rank_0_reads_stdin(launcher: Launcher, script: Script) -> None:
    done = launcher.run("-np", "2", script("print(repr(sys.stdin.read()))"), input="hello")
    assert sorted(done.stdout.splitlines()) == ["[0] 'hello'", "[1] ''"]


def test_a_flood_of_junk_arrives_complete(launcher: Launcher, script: Script) -> None:
    program = script("sys.stdout.buffer.write((b'\\xff\\x00' * 500 + b'\\n') * 4000); print(rank, 'end')")
    done = launcher.run("-np", "2", program)
    lines = done.stdout.encode(errors="surrogateescape").split(b"\n")
    for rank in (b"0", b"1"):
        assert lines.count(b"[%s] " % rank + b"\xff\x00" * 500) == 4000
        assert lines.count(b"[%s] %s end" % (rank, rank)) == 1


def test_progress_bars_stay_usable(launcher: Launcher, script: Script) -> None:
    done = launcher.start("-np", "1", script("[print(n, end='\\r') for n in range(3)]; print()"))
    assert done.stdout is not None
    done.stdout.reconfigure(newline="")  # type: ignore[attr-defined]
    assert done.stdout.read() == "[0] 0\r[0] 1\r[0] 2\r\n"


def test_variables_for_the_ranks(launcher: Launcher) -> None:
    shell = 'echo "$A $DDL_TIMEOUT $DDL_START_TIMEOUT $HOROVOD_RANK of $HOROVOD_SIZE $OMP_NUM_THREADS"'
    options = ["-np", "2", "--env", "A=b c", "--timeout", "7", "--start-timeout=9", "--env=OMP_NUM_THREADS=3"]
    done = launcher.run(*options, "sh", "-c", shell)
    assert sorted(done.stdout.splitlines()) == ["[0] b c 7 9 0 of 2 3", "[1] b c 7 9 1 of 2 3"]


def test_other_libraries_find_their_numbers_and_a_place_to_meet(launcher: Launcher) -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE HOROVOD_CROSS_SIZE MASTER_ADDR"
    shell = f'echo "{" ".join("$" + name for name in names.split())} $HOROVOD_HOSTNAME $MASTER_PORT"'
    done = launcher.run("-np", "2", "sh", "-c", shell)
    first, second = sorted(line.rpartition(" ") for line in done.stdout.splitlines())
    assert first[0] == f"[0] 0 2 0 2 0 1 1 127.0.0.1 {socket.gethostname()}"
    assert second[0] == f"[1] 1 2 1 2 0 1 1 127.0.0.1 {socket.gethostname()}"
    assert first[2] == second[2] and 1024 < int(first[2]) < 65536
    own = launcher.run("-np", "1", "--env=MASTER_ADDR=there", "--env=MASTER_PORT=7", "sh", "-c", shell)
    assert own.stdout == f"[0] 0 1 0 1 0 1 1 there {socket.gethostname()} 7\n"


@pytest.mark.parametrize("where", [("-np", "2"), ("-H", "localhost:2")], ids=["local", "over an agent"])
def test_the_place_to_meet_is_kept_until_rank_0_takes_it(
    launcher: Launcher, script: Script, where: Tuple[str, ...]
) -> None:
    text = """
import socket
port = int(os.environ["MASTER_PORT"])
try:  # somebody else, who does not know that it is spoken for
    with socket.socket() as stranger:
        stranger.bind(("", port))
    print("it was free", flush=True)
except OSError as error:
    print(error.strerror, flush=True)
if rank == 0:  # as torch's TCPStore does
    with socket.socket(socket.AF_INET6) as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", port))
        store.listen()
        print("met", store.accept()[1][1] > 0, flush=True)
else:
    for attempt in range(10000):
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], port)).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
"""
    done = launcher.run(*where, script(text))
    taken = "Address already in use"
    assert sorted(done.stdout.splitlines()) == [f"[0] {taken}", "[0] met True", f"[1] {taken}"], done.stderr


def test_verbose_says_what_happens(launcher: Launcher) -> None:
    done = launcher.run("-np", "2", "--verbose", "true")
    for text in (
        r"the store is at 127\.0\.0\.1:\d+",
        r"OMP_NUM_THREADS=\d+ .*TF_NUM_INTEROP_THREADS=\d+ in every rank",
        r"rank 1 is pid \d+",
        "exited with status 0",
    ):
        assert re.search(f"^ddlrun: .*{text}", done.stderr, re.MULTILINE)


def test_ranks_inherit_no_descriptor(launcher: Launcher, script: Script) -> None:
    # /proc/self/fd lists itself as 3.
    assert launcher.run("-np", "1", script("print(os.listdir('/proc/self/fd'))")).stdout == "[0] ['0', '1', '2', '3']\n"


def test_the_secret_is_on_no_command_line(launcher: Launcher, script: Script) -> None:
    program = script("print(os.environ['DDL_SECRET'], flush=True); input()")
    process = launcher.start("-np", "1", program, stdin=-1)
    assert process.stdout is not None
    secret = process.stdout.readline().split()[1]
    assert len(secret) == 64
    seen = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        seen += b"ddl.launch" in line
        assert secret.encode() not in line
    assert seen
    process.communicate("\n", timeout=240)


def test_the_launcher_imports_no_framework_and_not_the_core() -> None:
    check = (
        "import sys, ddl.launch.cli; bad = {'numpy', 'torch', 'ddl._core', 'ddl.api', 'msgpack'} & set(sys.modules); "
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", check], env={**os.environ, "PYTHONPATH": ROOT}, timeout=240)
    assert done.returncode == 0


def test_a_rank_that_ends_early_and_well_is_normal(launcher: Launcher, script: Script) -> None:
    done = launcher.run("-np", "2", script("time.sleep(1.5 * rank); print('end', rank)"))
    assert done.returncode == 0 and "[1] end 1" in done.stdout


@pytest.mark.parametrize("read", ["input()", "open('/dev/stdin').readline().strip()"])
def test_a_question_is_seen_before_it_is_answered(launcher: Launcher, script: Script, read: str) -> None:
    text = f"print('name?', end=' ', flush=True)\nprint('hello', {read})"
    process = launcher.start("-np", "1", script(text), stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.read(len("[0] name? ")) == "[0] name? "
    out, err = process.communicate("Ann\n", timeout=240)
    assert (process.returncode, out, err) == (0, "hello Ann\n", "")


def test_a_line_that_comes_in_two_parts_stays_whole(launcher: Launcher, script: Script) -> None:
    """As of a rank that prints in blocks, and is held up between two of them, while another one prints."""
    text = """
half, whole = (os.path.join(os.path.dirname(__file__), name) for name in ("half", "whole"))
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
if rank == 0:
    os.write(1, b"one ")
    open(half, "w").close()
    wait_for(whole)
    time.sleep(1)
    os.write(1, b"line\\n")
else:
    wait_for(half)
    time.sleep(1)
    os.write(1, b"another\\n")
    open(whole, "w").close()
"""
    done = launcher.run("-np", "2", script(text))
    assert (done.returncode, done.stdout) == (0, "[1] another\n[0] one line\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(launcher: Launcher, script: Script, tmp_path: Path, closed: str) -> None:
    """What would be printed there is lost; the job is not."""
    program = script(
        f"open({str(tmp_path)!r} + f'/ran.{{rank}}', 'w').close(); print('out'); print('err', file=sys.stderr)"
    )
    line = f"exec {sys.executable} -m ddl.launch -np 2 {program} {closed}"
    done = launcher.run("-c", line, command="bash")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.glob("ran.*")) == ["ran.0", "ran.1"]
    assert done.stdout.count("out") == (0 if ">&-" in closed.split() else 2)
    assert done.stderr.count("err") == (0 if "2>&-" in closed.split() else 2)


def test_a_folder_for_output_that_cannot_be_made(launcher: Launcher) -> None:
    done = launcher.run("-np", "1", "--output-dir", "/proc/foo", "true")
    assert done.returncode == 2
    assert done.stderr == "ddlrun: --output-dir /proc/foo: it cannot be made: No such file or directory\n"


# --- failures ---


def test_the_first_failure_is_shown_last_and_gives_the_status(launcher: Launcher, script: Script) -> None:
    text = """
listens = __file__ + ".listens"
if rank == 1:
    while not os.path.exists(listens):
        time.sleep(0.01)
    for number in range(30):
        print("line", number, file=sys.stderr)
    sys.exit(3)
if rank == 0:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("something else, later"))
    open(listens, "w").close()
time.sleep(600)  # longer than this test may wait
"""
    # Rank 0 has its own last words, which SIGKILL is not to cut off here.
    done = launcher.run("-np", "3", script(text), constants={"ddl.launch.agent.grace.KILL_GRACE": 100.0})
    assert done.returncode == 3 and "[0] something else, later\n" in done.stderr
    words, *tail = done.stderr[done.stderr.index("ddlrun:") :].splitlines()
    assert re.fullmatch(r"ddlrun: rank 1 \(pid \d+\) exited with status 3; its last lines on stderr:", words)
    assert tail == [f"    line {number}" for number in range(10, 30)]
    assert done.stderr.count("ddlrun:") == 1


def test_a_traceback_is_shown_once(launcher: Launcher, script: Script) -> None:
    text = """
def load():
    raise ValueError("no such data")
if rank == 1:
    load()
time.sleep(60)
"""
    done = launcher.run("-np", "2", script(text))
    assert done.returncode == 1 and done.stderr.count("ValueError: no such data") == 1
    words = r"\[1\] ValueError: no such data\nddlrun: rank 1 \(pid \d+\) exited with status 1; its last lines "
    assert re.search(f"{words}on stderr are those above\n$", done.stderr)


def test_a_report_has_the_frames_of_the_user(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    text = """
import numpy, ddl
def train():
    ddl.init()
    ddl.world().subset([0, 1]).allreduce(numpy.ones(3 + rank))
try:
    train()
except ddl.Error:
    if rank == 0:
        time.sleep(600)  # so that rank 1 ends first, which is not shown until then
    raise
"""
    done = launcher.run("-np", "2", "--output-dir", "logs", script(text), cwd=tmp_path)
    frames = re.findall(r"^      File .*$", done.stderr, re.M)
    assert [frame.rpartition(" ")[2] for frame in frames] == ["<module>", "train"], done.stderr
    before, _, after = done.stderr.partition("ddlrun: called something else: ")
    assert "    ddl.errors.CollectiveMismatch: [rank " in before.splitlines()[-1]
    assert after.splitlines()[-1].startswith("ddlrun: to see what each rank did last")
    log = "".join((tmp_path / "logs" / f"rank.{rank}.err").read_text() for rank in range(2))
    assert "verbs.py" in log  # what a rank wrote is kept as it is


def test_a_rank_that_is_killed(launcher: Launcher, script: Script) -> None:
    done = launcher.run("-np", "2", script("os.kill(os.getpid(), 9) if rank == 1 else time.sleep(60)"))
    assert done.returncode == 137
    # The second: something else on this machine has been killed for memory meanwhile, and the log is not to be read.
    words = r"was killed by signal 9 \(SIGKILL\)(, not for want of memory|: out of memory\? 'dmesg' tells, as root)\n$"
    assert re.search(rf"ddlrun: rank 1 \(pid \d+\) {words}", done.stderr)


def test_the_others_may_say_their_own_last_words(launcher: Launcher, script: Script) -> None:
    text = """
if rank == 0:
    open(sys.argv[1], "w").write(str(os.getpid()))
    sys.exit(4)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
time.sleep(0.3)
sys.exit("rank 1 noticed")
"""
    program = script(text)
    done = launcher.run("-np", "2", program, program + ".ends", constants=PATIENT)
    assert done.returncode == 4
    assert "[1] rank 1 noticed" in done.stderr and "rank 0 (pid" in done.stderr.splitlines()[-1]


def test_ranks_that_do_not_listen_are_killed_in_time(launcher: Launcher, script: Script) -> None:
    text = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rank == 2:
    open(sys.argv[1], "w").write(str(time.time()))
    sys.exit(5)
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""
    program = script(text)
    stamp = program + ".stamp"
    done = launcher.run("-np", "3", program, stamp)  # they would not end while this waits
    took = time.time() - float(Path(stamp).read_text())
    assert done.returncode == 5
    assert took > 1.4  # 1 s for last words and 0.5 s after SIGTERM


def test_the_stores_verdict_says_whom_to_blame(launcher: Launcher, script: Script) -> None:
    # Rank 1 dies first but is slow to end (as with a large core dump); rank 0 notices and ends before it.
    text = """
from ddl.bootstrap.environ import Identity
from ddl.store.store import StoreClient
from ddl.store.watch import WatchClient
me = Identity.from_environ()
store = StoreClient(me.store, me.secret, me.rank, 100)
watch = WatchClient(me.store, me.secret, me.rank, 100)
store.set(f"rank {rank}", str(os.getpid()))
store.check_in("", 100)
if rank == 1:
    watch.close()
    first = store.get("rank 0", 100)
    while open(f"/proc/{first}/cmdline").read():  # it has none when it has ended
        time.sleep(0.01)
    sys.exit("the cause")
while not (message := watch.receive()):
    time.sleep(0.01)
sys.exit(f"PeerLost: rank {message['culprit']}: {message['reason']}" if rank == 0 else 7)
"""
    done = launcher.run("-np", "3", script(text), constants=PATIENT)
    assert "[0] PeerLost: rank 1: its process ended" in done.stderr
    words = r"\[1\] the cause\nddlrun: rank 1 \(pid \d+\) exited with status 1; its last lines on stderr are those"
    assert re.search(f"{words} above\n$", done.stderr)
    assert done.returncode == 1


def test_a_program_that_cannot_be_started(launcher: Launcher, tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_bytes(b"\x7fELF but no more")
    program.chmod(0o755)
    done = launcher.run("-np", "2", str(program))
    assert done.returncode == 2
    assert re.search(r"^ddlrun: .*rank 0 cannot be started", done.stderr)


def test_nobody_reads_the_output(launcher: Launcher, script: Script) -> None:
    process = launcher.start("-np", "2", script("while True: print('y' * 1000)"))
    assert process.stdout is not None and process.stdout.readline()
    process.stdout.close()
    assert eventually(lambda: process.poll() is not None)
    assert process.returncode == 141


def test_a_reader_that_is_slow_does_not_keep_ddlrun_from_its_work(launcher: Launcher, script: Script) -> None:
    program = script("sys.exit(6) if rank == 1 else [print('y' * 1000) for _ in iter(int, 1)]")
    process = launcher.start("-np", "2", program)  # its output is not read until its ranks are gone
    assert eventually(lambda: len(launcher.alive()) == 2)  # ddlrun and its guard
    out, err = process.communicate(timeout=240)
    assert process.returncode == 6 and out.startswith("[0] yyy") and "rank 1 (pid" in err
