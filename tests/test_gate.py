"""A test that failed in the pool runs again alone: it then fails the run or is named as unsteady, and ten may be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Tuple

import pytest

pytest.importorskip("xdist")

TESTS = Path(__file__).resolve().parent

#: The second run of a test finds the file that the first has left.
SUITE = """
import os, pathlib, pytest

def first_time(name):
    file = pathlib.Path(name + ".ran")
    if file.exists():
        return False
    file.touch()
    return True

def test_clean():
    pass

def test_steady():
    assert not {steady}, "it never works"

@pytest.mark.parametrize("n", range({once}))
def test_fails_once(n):
    assert not first_time(f"once{{n}}"), f"too late: {{n}}" + chr(10) + "and more"

@pytest.fixture
def poor():
    yield
    assert {fixture} == 0 or not first_time("fixture"), "nothing was left"

def test_teardown_fails_once(poor):
    pass

def test_dies_once():
    if {dies} and first_time("dies"):
        os._exit(3)
"""


def gate(folder: Path, **how: int) -> Tuple[int, str]:
    """Run a made-up suite as `make test` runs ours; return the exit code and what was printed."""
    counts = {"steady": 0, "once": 0, "fixture": 0, "dies": 0, **how}
    (folder / "test_suite.py").write_text(SUITE.format(**counts))
    (folder / "conftest.py").write_text('pytest_plugins = ["outcomes"]\n')
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\n")
    line = [sys.executable, str(TESTS / "gate.py"), "mine", "-q", "test_suite.py", "-n", "2", "--dist", "loadfile"]
    ended = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def unsteady(folder: Path) -> Tuple[int, str]:
    line = [sys.executable, str(TESTS / "gate.py"), "--unsteady"]
    ended = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    return ended.returncode, ended.stdout


@pytest.mark.slow
@pytest.mark.processes
def test_a_clean_suite_passes(tmp_path: Path) -> None:
    status, printed = gate(tmp_path)
    assert status == 0, printed
    assert "4 passed" in printed and "UNSTEADY" not in printed and "failed" not in printed


@pytest.mark.slow
@pytest.mark.processes
def test_what_passes_by_itself_is_unsteady_and_named(tmp_path: Path) -> None:
    status, printed = gate(tmp_path, once=2, fixture=1, dies=1)
    assert status == 0, printed
    lines = printed.splitlines()
    assert "4 of mine failed; now they run by themselves" in lines
    assert sorted(lines[-4:])[1:] == [
        "UNSTEADY test_suite.py::test_fails_once[0]: AssertionError: too late: 0",
        "UNSTEADY test_suite.py::test_fails_once[1]: AssertionError: too late: 1",
        "UNSTEADY test_suite.py::test_teardown_fails_once: AssertionError: nothing was left",
    ]
    assert sorted(lines[-4:])[0].startswith("UNSTEADY test_suite.py::test_dies_once: worker 'gw")
    assert unsteady(tmp_path) == (0, "\n".join(lines[-4:]) + "\n")


@pytest.mark.processes
def test_what_fails_again_fails_the_suite(tmp_path: Path) -> None:
    status, printed = gate(tmp_path, steady=1, once=1)
    assert status == 1
    last = printed.splitlines()[-1]
    assert last.startswith("FAILED AGAIN test_suite.py::test_steady: AssertionError: it never works"), printed
    assert unsteady(tmp_path) == (0, "UNSTEADY test_suite.py::test_fails_once[0]: AssertionError: too late: 0\n")


@pytest.mark.slow
@pytest.mark.processes
def test_too_many_failures_are_not_run_again(tmp_path: Path) -> None:
    status, printed = gate(tmp_path, once=11)
    assert status == 1
    assert printed.splitlines()[-1] == "11 tests of mine failed: too many to run them again"


def test_the_limit_is_for_all_suites_together(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "build" / "tests" / name).mkdir(parents=True)
        (tmp_path / "build" / "tests" / name / "unsteady").write_text("UNSTEADY a: b\n" * 5)
    assert unsteady(tmp_path) == (0, "UNSTEADY a: b\n" * 10)
    (tmp_path / "build" / "tests" / "one" / "unsteady").write_text("UNSTEADY a: b\n" * 6)
    assert unsteady(tmp_path) == (1, "UNSTEADY a: b\n" * 11 + "11 tests are unsteady: more than 10\n")


@pytest.mark.slow
@pytest.mark.processes
def test_a_file_that_cannot_be_loaded_fails_the_suite(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("import nothing_of_this_name\n")
    line = [sys.executable, str(TESTS / "gate.py"), "mine", "test_other.py", "-n", "2"]
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["outcomes"]\n')
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\n")
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode not in (0, 5) and "nothing_of_this_name" in ended.stdout
