"""The ``ddl`` command itself: misspelt tools and options, and what is said of files that were written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import List

import pytest

import ddl
from ddl.tools.cli import main
from ddl.tools.cli import run as run_tool

ROOT = str(Path(ddl.__file__).parent.parent)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dcotor"], "(did you mean 'doctor'?)"),
        (["benhc", "allreduce"], "(did you mean 'bench'?)"),
        (["bench", "alreduce"], "(did you mean 'allreduce'?)"),
        (["plan", "4", "--allgorithm=ring"], "unknown option --allgorithm (did you mean '--algorithm'?)"),
        (["bench", "allreduce", "--sizse", "8"], "unknown option --sizse (did you mean '--sizes'?)"),
        (["topo", "--nothing-like-it"], "unknown option --nothing-like-it\n"),
    ],
)
def test_what_may_have_been_meant(words: List[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_a_picture_that_was_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ring.svg"
    assert main(["plan", "4", "--algorithm", "ring", "--verify", "--svg", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == f"wrote {path} ({path.stat().st_size / 1024:.3g} KiB)\n" and "wrote" not in out


@pytest.mark.parametrize("module", ["ddl", "ddl.tools"])
def test_the_command_by_its_module(module: str) -> None:
    """For machines on whose PATH there is no ``ddl``."""
    line = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONPATH": ROOT})
    assert (done.returncode, done.stdout) == (0, f"ddl {ddl.__version__}\n")


def test_a_tool_is_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence and the status of a shell, no traceback: ``python -m benchmarks`` and ``python -m lab`` alike."""
    tool = ModuleType("interrupted_tool")
    monkeypatch.setattr(tool, "add_arguments", lambda parser, rest: None, raising=False)
    monkeypatch.setattr(tool, "run", lambda arguments: signal.raise_signal(signal.SIGINT), raising=False)
    monkeypatch.setitem(sys.modules, tool.__name__, tool)
    assert run_tool("python -m benchmarks", "", {"waking": (tool.__name__, "wait")}, ["waking"]) == 130
    assert capsys.readouterr().err == "\npython -m benchmarks waking: ended by Ctrl-C\n"
