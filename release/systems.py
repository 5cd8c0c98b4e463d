"""Small systems in which a Python runs: where its headers come from, and where its wheels are tried.

A system is a folder with packages of Debian that mmdebstrap has unpacked: a Python, its headers, and what it needs;
no compiler. It is made once and kept. A Python that no Debian has is one of this machine (pyenv's, for example), in a
system that has its libraries; for another processor it is compiled (cross_python.py), and runs by qemu as all do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Tuple

from ddl.errors import ConfigError
from release.cross_python import compile_python
from release.targets import WheelTarget

__all__ = ["System", "headers", "interpreter", "libstdcxx", "program", "system_for"]

_SUITES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}
_FOREIGN_SUITE = "bookworm"  # for a Python of this machine
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_ALWAYS = ("base-files", "dash", "coreutils", "libstdc++6")  # numpy needs libstdc++
_LIBRARIES = ("libssl3", "libffi8", "zlib1g", "libbz2-1.0", "liblzma5", "libreadline8", "libsqlite3-0", "libuuid1")
_FOR_COMPILING = ("zlib1g-dev", "libffi-dev")
_MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
_HERE = Path(__file__).resolve().parent
_KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "open-ddl" / "systems"


@dataclass(frozen=True)
class System:
    """A system at ``root``, with a Python at the path ``python`` in it. ``prefix``: of one that is no part of it."""

    root: Path
    python: str
    machine: str
    prefix: Optional[Path] = None

    def run(self, words: Sequence[str], seconds: float, shared: Path) -> subprocess.CompletedProcess[str]:
        """Run a program as root of the system, in namespaces of its own; folder ``shared`` is there at /shared."""
        binds = [f"{shared}:/shared"] + ([f"{self.prefix}:{self.prefix}"] if self.prefix else [])
        # Nothing is left behind if whoever runs this is killed.
        namespaces = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--net",
        ]
        line = [*namespaces, str(_HERE / "enter.sh"), str(self.root), self.machine, *binds, "--", *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)


def interpreter(python: str) -> Path:
    """Return a Python of this machine with headers: from PATH, or pyenv's. ConfigError if there is none."""
    for path in _candidates(python):
        question = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('include'))"
        answer = subprocess.run([str(path), "-c", question], capture_output=True, text=True, check=False).stdout.split()
        if len(answer) == 2 and answer[0] == python and Path(answer[1], "Python.h").exists():
            return path.resolve()
    raise ConfigError(
        f"there is no Python {python} with headers on this machine: install it (with pyenv, for example), "
        "or leave its wheels out with --pythons"
    )


def _candidates(python: str) -> Iterator[Path]:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(root.glob(f"versions/{python}.*/bin/python{python}"))
    on_path = shutil.which(f"python{python}")
    if on_path:
        yield Path(on_path)


def system_for(target: WheelTarget) -> System:
    """Return a system that runs the target's Python, made if need be. ConfigError if it cannot be made here."""
    suite = _SUITES.get(target.python)
    if suite is not None:
        names = [f"python{target.python}", f"python{target.python}-venv", f"libpython{target.python}-dev"]
        return System(_make(suite, target.machine, names), f"/usr/bin/python{target.python}", target.machine)
    native = interpreter(target.python)
    system = _make(_FOREIGN_SUITE, target.machine, _LIBRARIES)
    if target.machine == os.uname().machine:
        return System(system, str(native), target.machine, native.parents[1])
    prefix = _KEPT / f"python{target.python}-{target.machine}"
    python = prefix / "bin" / f"python{target.python}"
    if not python.exists():
        compile_python(target, native, _make(_FOREIGN_SUITE, target.machine, _FOR_COMPILING), prefix)
    return System(system, str(python), target.machine, prefix)


def headers(target: WheelTarget) -> List[Path]:
    """Return the folders of the headers of a target's Python; ConfigError if there is none.

    Those of a Python of this machine serve for both processors: what differs says nothing about the interface.
    """
    if target.python in _SUITES:
        # Beside the C library's own, which the compiler must not see: it brings those of another one.
        include = system_for(target).root / "headers"
        return [include / f"python{target.python}", include, _HERE / "include"]
    return [interpreter(target.python).parents[1] / "include" / f"python{target.python}", _HERE / "include"]


def libstdcxx(machine: str) -> Tuple[List[Path], Path]:
    """Return the folders of the headers of Debian 11's libstdc++, and the library itself, for a processor."""
    root, triplet = _make("bullseye", machine, ["libstdc++-10-dev"]), f"{machine}-linux-gnu"
    include = root / "usr" / "include"
    return [include / "c++/10", include / triplet / "c++/10"], root / "usr/lib" / triplet / "libstdc++.so.6"


def program(name: str) -> str:
    """Return the path of a program that trials need; ConfigError says how to get it."""
    path = shutil.which(name)
    if path is None:
        raise ConfigError(f"{name} is not here: on Debian, apt install mmdebstrap qemu-user-static")
    return path


def _make(suite: str, machine: str, names: Sequence[str]) -> Path:
    root = _KEPT / f"{suite}-{machine}-{names[0]}"
    if (root / "complete").exists():
        return root
    mmdebstrap = program("mmdebstrap")
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            *(mmdebstrap, "--quiet", "--variant=extract", f"--architectures={_ARCHITECTURES[machine]}"),
            *('--aptopt=Acquire::Check-Valid-Until "false"', f"--include={','.join([*_ALWAYS, *names])}"),
            *("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", suite, str(root)),
            f"deb {_MIRROR} {suite} main",  # without its updates, which go away earlier than the suite
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ConfigError(f"the system {root} cannot be made: {done.stderr}")
    (root / "shared").mkdir(exist_ok=True)
    for folder in (root / "usr/include").glob("**/python3.*"):
        shutil.copytree(folder, root / "headers" / folder.relative_to(root / "usr/include"))
    (root / "complete").touch()
    return root
