"""``ddl.run``: a function on many ranks, called from a notebook or a script; what it returns, prints and raises."""

from __future__ import annotations

import importlib
import inspect
import os
import pydoc
import signal
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from types import ModuleType
from typing import Iterator

import pytest
from launch.launcher import ROOT, Launcher, eventually
from process_groups import require

import ddl

pytestmark = pytest.mark.processes

MODULE = """
import os, signal, socket, sys, time
import ddl

def whoami(*args, **kwargs):
    ddl.init()
    print("out", ddl.rank())
    print("err", ddl.rank(), file=sys.stderr)
    return ddl.rank(), float(ddl.allreduce(1.0, op=ddl.Sum)), args, kwargs, os.getcwd()

def fails(how):
    ddl.init()
    if ddl.rank() == 1:
        how()
    ddl.barrier()

def raises():
    raise ZeroDivisionError("by this rank")

def dies():
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def exits():
    sys.exit("a script would end here")

def leaves():
    os._exit(0)

def unpicklable():
    return socket.socket()

def where():
    return sys.prefix, sys.path

def ends_the_helper():
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(30)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's; afterwards nothing of his jobs is left in the directory of temporary files."""
    folder, temporary = tmp_path / "modules", tmp_path / "temporary"
    folder.mkdir(), temporary.mkdir()
    (folder / "somebodys_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield importlib.import_module("somebodys_module")
    del sys.modules["somebodys_module"]
    assert not list(temporary.iterdir())


def test_results_come_in_rank_order(
    module: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)  # what modules define needs nothing
    results = ddl.run(module.whoami, (1, "two"), {"three": [3]}, np=3)
    assert results == [(rank, 3.0, (1, "two"), {"three": [3]}, os.getcwd()) for rank in range(3)]
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == [f"[{rank}] out {rank}" for rank in range(3)]
    assert sorted(err.splitlines()) == [f"[{rank}] err {rank}" for rank in range(3)]


def test_the_arguments_of_horovod(module: ModuleType, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    horovods = (
        "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile "
        "host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose "
        "use_gloo use_mpi mpi_args network_interface executable network_interfaces np min_np max_np"
    )
    assert list(inspect.signature(ddl.run).parameters) == horovods.split()  # by position, too
    results = ddl.run(
        func=module.whoami, hosts="localhost:1,127.0.0.1:1", start_timeout=20, verbose=1, cooldown_range=(1, 2),
        use_gloo=True, disable_cache=True, output_filename=str(tmp_path / "logs"), executable=sys.executable,
    )  # fmt: skip
    assert [result[0] for result in results] == [0, 1]
    assert (tmp_path / "logs" / "rank.1.out").read_text() == "out 1\n"
    err = capfd.readouterr().err
    for option in ("--blacklist-cooldown-range", "--gloo", "--disable-cache"):
        assert f"ddl.run: {option} has no effect: " in err
    assert "ddlrun: rank 1 is pid" in err


def test_a_rank_that_raises_shows_its_traceback(module: ModuleType) -> None:
    with pytest.raises(ddl.RankFailed) as caught:
        ddl.run(module.fails, (module.raises,), np=2)
    text = str(caught.value)
    assert caught.value.rank == 1 and text.startswith("rank 1 (pid ") and "in raises\n" in text
    assert text.endswith("ZeroDivisionError: by this rank")


def test_a_rank_that_dies_is_named(module: ModuleType) -> None:
    with pytest.raises(ddl.RankFailed) as caught:
        ddl.run(module.fails, (module.dies,), np=2)
    assert caught.value.rank == 1
    assert "was killed by signal 9 (SIGKILL)\n\nlast words" in str(caught.value)


def test_ranks_without_a_result(module: ModuleType) -> None:
    with pytest.raises(ddl.RankFailed, match="(?s)rank 0 .*SystemExit: a script would end here$"):
        ddl.run(module.exits, np=1)
    with pytest.raises(ddl.RankFailed, match="rank 0 ended without a result"):
        ddl.run(module.leaves, np=1)
    with pytest.raises(ddl.RankFailed, match="(?s)rank 0 .*the result cannot be pickled: .*socket"):
        ddl.run(module.unpicklable, np=1)
    with pytest.raises(ddl.RankFailed, match="the process that runs the ranks ended with status 2"):
        ddl.run(module.whoami, np=1, start_timeout=-1)


def test_an_allocation_of_slurm_is_not_asked(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "other[1-2]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1(x2)")
    assert [result[0] for result in ddl.run(module.whoami, np=3, ssh_port=22)] == [0, 1, 2]


def test_another_python_keeps_its_own_library(module: ModuleType, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    ((prefix, path),) = ddl.run(module.where, np=1, executable=python)
    assert prefix == str(tmp_path / "venv") and any(entry.startswith(prefix) for entry in path)
    assert sysconfig.get_path("purelib") not in path and str(tmp_path / "modules") in path


def test_who_ends_the_helper_is_not_taken_for_a_rank(module: ModuleType) -> None:
    with pytest.raises(ddl.RankFailed, match="was stopped by SIGTERM") as caught:
        ddl.run(module.ends_the_helper, np=2)
    assert caught.value.rank == -1


def test_what_is_refused_before_anything_starts(module: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    for options, match in (
        ({"np": 0}, "say how many ranks"),
        ({"np": 2, "num_proc": 3}, "num_proc=3 and np=2 say different numbers of ranks"),
        ({"min_np": 2, "min_num_proc": 3}, "min_num_proc=3 and min_np=2 say different numbers of ranks"),
        ({"np": 3, "hostfile": str(tmp_path / "hosts")}, "more than the 2 slots"),
        ({"hosts": "192.0.2.1:2"}, "192.0.2.1 is another machine, and functions are called on this one only"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=match):
            ddl.run(module.whoami, **options)
    with pytest.raises(ddl.InvalidArgument, match="7 cannot be called; pass a function"):
        ddl.run(7, np=1)  # type: ignore[arg-type]
    for arguments in (5, "ab"):
        with pytest.raises(ddl.InvalidArgument, match="args= is a tuple or a list"):
            ddl.run(module.whoami, arguments, np=1)
    with pytest.raises(ddl.InvalidArgument, match="the function and its arguments cannot be pickled: .*generator"):
        ddl.run(module.whoami, ((number for number in range(3)),), np=1)


def test_without_a_number_there_is_one_rank_and_numbers_of_elastic_jobs_are_named(
    module: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    assert [result[:2] for result in ddl.run(module.whoami, (), None, None, 1, min_np=1, max_np=2)] == [(0, 1.0)]
    assert "ddl.run: --min-num-proc, --max-num-proc have no effect: " in capfd.readouterr().err


def test_help_shows_arguments_and_what_they_mean() -> None:
    help_text = pydoc.plain(pydoc.render_doc(ddl.run))
    assert "\n\nrun(func: " in help_text and "Call ``func(*args, **kwargs)`` on each of ``np``" in help_text


NOTEBOOK = """
import sys
{hide}
import ddl

class Result:
    def __init__(self, rank, size):
        self.rank, self.size = rank, size

scale = 10

def train(x):
    ddl.init()
    return Result(ddl.rank() * scale + x, ddl.size())

results = ddl.run(train, (1,), np=2)
assert all(type(result) is Result for result in results)
print([(result.rank, result.size) for result in results], ddl.run(lambda: scale, np=1))
"""


def test_functions_that_the_script_defines(launcher: Launcher, tmp_path: Path) -> None:
    require("cloudpickle")
    program = tmp_path / "program.py"
    program.write_text(NOTEBOOK.format(hide=""))
    done = launcher.run(str(program), command=sys.executable)
    assert (done.returncode, done.stdout) == (0, "[(1, 2), (11, 2)] [10]\n"), done.stderr


def test_without_cloudpickle_they_are_refused(launcher: Launcher, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(NOTEBOOK.format(hide="sys.modules['cloudpickle'] = None"))
    done = launcher.run(str(program), command=sys.executable)
    assert done.returncode == 1
    assert "train is defined in a notebook or in the script itself; cloudpickle can do more: pip install" in done.stderr


SLEEP = """
import os, time

def sleep():
    open(os.path.join(os.path.dirname(__file__), "started." + os.environ["DDL_RANK"]), "w").close()
    time.sleep(100)
"""
ENDLESS = """
import sys
sys.path.insert(0, {folder!r})
import ddl, endless
try:
    ddl.run(endless.sleep, np=2)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(7)
"""


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_who_is_interrupted_or_killed_leaves_no_rank(number: int, launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(SLEEP)
    program = tmp_path / "program.py"
    program.write_text(ENDLESS.format(folder=str(tmp_path)))
    process = launcher.start(
        str(program), command=sys.executable, environ={"TMPDIR": str(tmp_path), "PYTHONPATH": ROOT}
    )
    assert eventually(lambda: all((tmp_path / f"started.{rank}").exists() for rank in range(2)))
    process.send_signal(number)
    out, _ = process.communicate(timeout=240)
    assert (process.returncode, out) == ((7, "interrupted\n") if number == signal.SIGINT else (-signal.SIGKILL, ""))
    assert eventually(lambda: not launcher.alive())
    assert not list(tmp_path.glob("ddl-run-*"))
