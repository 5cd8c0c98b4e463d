"""The scripts that make environments say why if they cannot, by a status of their own; they take the smaller torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from environments.torch_build import choose

SCRIPT = Path(__file__).resolve().parents[1] / "environments" / "caffe.sh"

pytestmark = pytest.mark.processes


def run(*words, **environ):
    environ = {**os.environ, **environ}
    return subprocess.run([str(SCRIPT), *words], env=environ, capture_output=True, text=True, timeout=240)


def test_it_says_how_it_is_called():
    done = run()
    assert done.returncode == 2 and "caffe.sh DEST" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="this system is not made of Debian's packages")
@pytest.mark.skipif(
    not os.path.exists("/usr/share/keyrings/debian-archive-keyring.gpg"), reason="Debian's keys are not here"
)
def test_an_archive_that_cannot_be_reached_is_no_failure_of_ours(tmp_path):
    done = run(str(tmp_path), DEBIAN_MIRROR="http://127.0.0.1:9/debian")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("caffe.sh: Debian's bullseye archive cannot be reached: E: ")
    assert "127.0.0.1" in done.stderr
    assert not (tmp_path / "recipe").exists() and not list(tmp_path.glob("debs/*.deb"))


def test_a_system_without_packages_of_debian_is_told(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("env", "bash", "cat", "dirname", "mkdir", "sha256sum"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    done = run(str(tmp_path / "dest"), PATH=str(tmp_path / "bin"))
    assert done.returncode == 3 and "apt-get is not here" in done.stderr


def _report(*names):
    return {"install": [{"metadata": {"name": name}} for name in names]}


CPU, CUDA = _report("torch", "sympy"), _report("torch", "nvidia-cublas", "triton")
THERE = ["--extra-index-url", "there"]


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        (CPU, CUDA, ([], False)),
        (CUDA, CPU, (THERE, False)),
        (CUDA, CUDA, ([], True)),
        (CUDA, None, ([], True)),  # it cannot be reached
        (None, CPU, ([], None)),  # pip itself says why, when it installs
    ],
)
def test_the_build_for_cpus_is_taken_where_an_index_offers_one(here, there, expected):
    asked = []

    def ask(further):
        asked.append(list(further))
        return here if not further else there

    assert choose(ask, "there") == expected
    assert asked[0] == [] and (here is not CUDA or asked[1][:2] == THERE)
    assert choose(lambda further: here if not further else there, "") == ([], None if here is None else here is CUDA)
