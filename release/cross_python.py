"""A Python for another processor that no Debian has: CPython's own sources, as Ubuntu keeps them, compiled by zig.

It has what a trial of a wheel needs, and no more: no TLS, no databases, no line editor.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Dict

from ddl.errors import ConfigError
from release.targets import WheelTarget
from release.toolchain import toolchain

__all__ = ["SOURCES", "compile_python"]

_MIRROR = os.environ.get("UBUNTU_MIRROR", "http://archive.ubuntu.com/ubuntu")
#: Python -> the archive of its sources below the mirror's pool, and its SHA-256.
SOURCES = {
    "3.10": (
        "main/p/python3.10/python3.10_3.10.4.orig.tar.xz",
        "80bf925f571da436b35210886cf79f6eb5fa5d6c571316b73568343451f77a19",
    ),
    "3.12": (
        "main/p/python3.12/python3.12_3.12.3.orig.tar.xz",
        "56bfef1fdfc1221ce6720e43a661e3eb41785dd914ce99698d8c7896af4bdaa1",
    ),
}
#: What is left out, as configure says it from 3.11 on; 3.10 leaves out what it does not find.
_LEFT_OUT = "_lzma _bz2 _ssl _hashlib _sqlite3 _uuid readline _curses _curses_panel _gdbm _dbm _tkinter nis _crypt"
#: configure cannot run programs for another processor; these it would run, or look for on the machine.
_KNOWN = {"ac_cv_file__dev_ptmx": "yes", "ac_cv_file__dev_ptc": "no", "ac_cv_buggy_getaddrinfo": "no"}


def compile_python(target: WheelTarget, native: Path, libraries: Path, prefix: Path) -> None:
    """Compile the target's Python, to be run at ``prefix``.

    native: a Python of the same version that runs here. libraries: a system of the target's processor with the headers
    of zlib and libffi. Takes some minutes. Raises ``ConfigError``.
    """
    name, digest = SOURCES[target.python]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        archive = work / "sources.tar.xz"
        try:
            with urllib.request.urlopen(f"{_MIRROR}/pool/{name}", timeout=60) as answer:
                archive.write_bytes(answer.read())
        except OSError as error:
            message = f"the sources of Python {target.python} cannot be had: {_MIRROR}/pool/{name}: {error}"
            raise ConfigError(message) from error
        if hashlib.sha256(archive.read_bytes()).hexdigest() != digest:
            raise ConfigError(f"{_MIRROR}/pool/{name} is not the file that release/cross_python.py knows")
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")
        (sources,) = (path for path in work.iterdir() if path.is_dir())
        environ = _environ(target, native, libraries, work)
        configure = ["./configure", "--quiet", f"--host={target.machine}-linux-gnu", f"--prefix={prefix}"]
        configure += [f"--build={os.uname().machine}-linux-gnu", "--without-ensurepip"]
        if target.version >= (3, 11):
            configure += [f"--with-build-python={native}", "--disable-test-modules"]
        shutil.rmtree(prefix, ignore_errors=True)
        for line in (configure, ["make", "--silent", f"--jobs={os.cpu_count()}"], ["make", "--silent", "install"]):
            done = subprocess.run(line, cwd=sources, env=environ, capture_output=True, text=True)
            if done.returncode:
                raise ConfigError(f"Python {target.python} cannot be compiled: {' '.join(line)}: {done.stderr[-2000:]}")


def _environ(target: WheelTarget, native: Path, libraries: Path, work: Path) -> Dict[str, str]:
    """Return the environment of configure and make: they find zlib and libffi in ``work``, nothing of this machine."""
    include, lib = work / "include", work / "lib"
    include.mkdir()
    lib.mkdir()
    triplet = f"{target.machine}-linux-gnu"
    for pattern in ("zlib.h", "zconf.h", f"{triplet}/ffi*.h"):
        for header in (libraries / "usr" / "include").glob(pattern):
            shutil.copy(header, include)
    for library in ("z", "ffi"):
        candidates = sorted((libraries / "usr" / "lib" / triplet).glob(f"lib{library}.so.*.*.*"))
        candidates += sorted((libraries / "lib" / triplet).glob(f"lib{library}.so.*.*.*"))
        shutil.copy(candidates[0], lib / f"lib{library}.so")
    programs = toolchain(target.machine, work / "toolchain", work)
    return {
        **os.environ,
        **_KNOWN,
        **{f"py_cv_module_{module}": "n/a" for module in _LEFT_OUT.split()},
        "PATH": f"{native.parent}:{os.environ.get('PATH', os.defpath)}",  # 3.10 looks there for the native one
        "CC": programs["CC"],
        "AR": str(work / "toolchain" / "ar"),
        "RANLIB": str(work / "toolchain" / "ranlib"),
        "READELF": shutil.which("readelf") or "readelf",
        "PKG_CONFIG": "false",
        "CFLAGS": "-w -Wno-date-time",  # zig takes the time of the build for an error
        "CPPFLAGS": f"-I{include}",
        "LDFLAGS": f"-L{lib}",
        "ZLIB_CFLAGS": " ",
        "ZLIB_LIBS": "-lz",
        "LIBFFI_CFLAGS": " ",
        "LIBFFI_LIBS": "-lffi",
        "LIBFFI_INCLUDEDIR": str(include),
    }
