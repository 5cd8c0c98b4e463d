"""``environments/touched.sh``: which legacy framework a change concerns, and what it says where git cannot tell."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import List

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "environments" / "touched.sh"
pytestmark = pytest.mark.processes


def git(folder: Path, *words: str) -> None:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    line = ["git", "-c", "user.name=Somebody", "-c", "user.email=nobody@example.org", *words]
    subprocess.run(line, cwd=folder, env={**os.environ, **own}, check=True, capture_output=True, timeout=60)


def commit(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with open(folder / name, "a", encoding="utf-8") as file:
            file.write("One line more.\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--allow-empty", "--message", "Change something")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone of a repository with two commits, of which the last one concerns nothing."""
    upstream = tmp_path / "upstream"
    (upstream / "environments").mkdir(parents=True)
    shutil.copy(SCRIPT, upstream / "environments")
    git(upstream, "init", "--initial-branch=main")
    commit(upstream, "csrc/core.cc", "README.md")
    commit(upstream, "README.md")
    git(tmp_path, "clone", str(upstream), "clone")
    return tmp_path / "clone"


def touched(clone: Path) -> List[str]:
    names = ("caffe", "chainer", "theano")
    script = str(clone / "environments" / "touched.sh")
    status = {name: subprocess.run([script, name], capture_output=True, timeout=60).returncode for name in names}
    assert set(status.values()) <= {0, 1}
    return [name for name in names if status[name] == 0]


def test_a_fresh_clone_tests_all(clone: Path) -> None:
    """A series of commits is in the upstream branch by then: its last one alone says nothing of the others."""
    assert touched(clone) == ["caffe", "chainer", "theano"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("csrc/core.cc", ["caffe", "chainer", "theano"]),
        ("ddl/adapter/fused.py", ["caffe", "chainer", "theano"]),
        ("ddl_theano/__init__.py", ["theano"]),
        ("tests/chainer/test_naive.py", ["chainer"]),
        ("tests/chainer_cases.py", ["chainer"]),
        ("docs/guide.md", []),
    ],
)
def test_a_change_of_several_commits(clone: Path, name: str, expected: List[str]) -> None:
    """The first of them counts as much as the last one."""
    commit(clone, name)
    commit(clone, "README.md")
    assert touched(clone) == expected


def test_what_is_not_committed_counts(clone: Path) -> None:
    commit(clone, "docs/guide.md")
    (clone / "ddl_caffe").mkdir()
    (clone / "ddl_caffe" / "new.py").write_text("")
    assert touched(clone) == ["caffe"]


def test_without_an_upstream_branch_all_are_tested(clone: Path) -> None:
    git(clone, "branch", "--unset-upstream")
    commit(clone, "docs/guide.md")
    assert touched(clone) == ["caffe", "chainer", "theano"]
