"""What makes an environment for a framework of old says why where it cannot: in time, by a status of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

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
