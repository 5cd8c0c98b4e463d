"""A checkout that was moved or copied, with what was built in it, builds where it is now."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Dict, Optional

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.processes

#: In place of ours: it takes as long to compile as to make a file.
PROJECT = """
cmake_minimum_required(VERSION 3.18...4.0)
project(moved LANGUAGES NONE)
add_custom_command(OUTPUT made COMMAND ${CMAKE_COMMAND} -E copy ${CMAKE_SOURCE_DIR}/source made)
add_custom_target(engine DEPENDS made)
"""


def build(checkout: Path, environ: Optional[Dict[str, str]] = None) -> Path:
    """Do what setup.py does for one part of the core; return the build directory."""
    code = "import runpy, sys; print(runpy.run_path(sys.argv[1], run_name='setup')['build']('engine', 'engine'))"
    line = [sys.executable, "-c", code, str(checkout / "setup.py")]
    done = subprocess.run(
        line, env={**os.environ, **(environ or {})}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.splitlines()[-1])


def checkout(folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(ROOT / "setup.py", folder)
    (folder / "CMakeLists.txt").write_text(PROJECT)
    (folder / "source").write_text("1")
    return folder


def test_what_was_built_in_another_place_is_discarded(tmp_path: Path) -> None:
    pytest.importorskip("cmake")
    first = build(checkout(tmp_path / "first"))
    assert (first / "made").read_text() == "1"
    (first / "kept").touch()
    assert build(tmp_path / "first") == first and (first / "kept").exists()  # a second build is incremental
    shutil.copytree(tmp_path / "first", tmp_path / "copied", symlinks=True)
    (tmp_path / "first").rename(tmp_path / "moved")
    for place in ("copied", "moved"):
        (tmp_path / place / "source").write_text("2")
        directory = build(tmp_path / place)
        assert directory.is_relative_to(tmp_path / place)
        assert (directory / "made").read_text() == "2" and not (directory / "kept").exists()


def test_what_another_compiler_built_is_discarded(tmp_path: Path) -> None:
    pytest.importorskip("cmake")
    other = tmp_path / "c++"
    other.write_text("#!/bin/sh\necho 'c++ of another system, 99.9'\n")
    other.chmod(0o755)
    directory = build(checkout(tmp_path / "here"))
    (directory / "kept").touch()
    build(tmp_path / "here", {"CXX": str(other)})  # as in an image into which the checkout was copied
    assert not (directory / "kept").exists() and (directory / "made").exists()


def discard(environment: Path) -> str:
    line = [str(ROOT / "environments" / "discard_foreign.sh"), environment.name]
    done = subprocess.run(line, cwd=environment.parent, capture_output=True, text=True, timeout=240, check=True)
    return done.stderr


def test_an_environment_of_another_place_is_discarded(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    environment = tmp_path / "first" / ".venv"
    assert discard(environment) == ""  # there is none
    venv.create(environment, symlinks=True)
    assert discard(environment) == "" and environment.exists()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".venv").symlink_to(environment)
    assert discard(tmp_path / "linked" / ".venv") == "" and environment.exists()
    shutil.copytree(tmp_path / "first", tmp_path / "copied", symlinks=True)
    (tmp_path / "first").rename(tmp_path / "moved")
    for place in ("copied", "moved"):
        foreign = tmp_path / place / ".venv"
        assert discard(foreign) == f"make: .venv was made in {environment}, or its Python is gone: it is made anew\n"
        assert not foreign.exists()


def test_an_environment_without_its_python_is_discarded(tmp_path: Path) -> None:
    environment = tmp_path / ".venv"
    venv.create(environment, symlinks=True)
    for name in ("python", "python3"):
        (environment / "bin" / name).unlink()
        (environment / "bin" / name).symlink_to("/nonexistent/python3")
    assert "it is made anew" in discard(environment) and not environment.exists()
