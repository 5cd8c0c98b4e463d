"""The image of containers/Containerfile, built once, and hosts on which it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import pytest
from containers.podman import Podman, why_not

from lab import TWO_HOSTS, Cluster

ROOT = Path(__file__).resolve().parents[2]
SUITE, PYTHON = "bookworm", "3.11"
#: What python:3.11-slim has, more or less, but for a compiler.
PACKAGES = ("python3", "python3-venv", "python3-dev", "openssh-server", "openssh-client", "libstdc++6")
#: What building and installing takes from PyPI.
WHEELS = ("setuptools", "wheel", "pybind11", "cmake", "ninja", "numpy", "msgpack")
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    # Podman takes no path of over 50 characters, and pytest's grow with the number of its runs and workers.
    podman = Podman(Path(tempfile.mkdtemp(prefix="ddl-", dir="/tmp")))  # noqa: S108
    yield podman
    podman.close()


@pytest.fixture(scope="session")
def base(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Debian with Python: there is no registry from which to take one."""
    archive = tmp_path_factory.mktemp("base") / "base.tar"
    line = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    line += ['--aptopt=Acquire::Check-Valid-Until "false"', SUITE, str(archive), f"deb {MIRROR} {SUITE} main"]
    subprocess.run(line, check=True, timeout=600)
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    podman.run("import", "--quiet", f"--change=ENV PATH={path}", str(archive), "base")
    archive.unlink()
    return "base"


@pytest.fixture(scope="session")
def image(podman: Podman, base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """DDL without a framework, built from this checkout."""
    wheels = tmp_path_factory.mktemp("wheels")
    line = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(wheels)]
    line += [f"--python-version={PYTHON}", "--implementation=cp", "--platform=any"]
    line += [f"--platform=manylinux{end}_{os.uname().machine}" for end in ("2014", "_2_17", "_2_27", "_2_28")]
    subprocess.run([*line, *WHEELS], check=True, timeout=600)
    given = {"BASE": base, "EXTRAS": "", "TORCH_INDEX": "", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/given"}
    arguments = [f"--build-arg={name}={value}" for name, value in given.items()]
    file = ROOT / "containers" / "Containerfile"
    podman.build(file, ROOT, "ddl", f"--volume={wheels}:/given:ro", *arguments)
    return "ddl"


@pytest.fixture(scope="session")
def sshd_image(podman: Podman, image: str) -> str:
    folder = ROOT / "containers"
    podman.build(folder / "Containerfile.sshd", folder, "ddl-sshd")
    return "ddl-sshd"


@pytest.fixture(scope="module")
def hosts(clusters_can_be_built: None) -> Iterator[Cluster]:
    with Cluster(TWO_HOSTS) as built:
        yield built
