"""``python -m release wheels``: builds the source distribution, and from that all wheels, into dist/.

Each wheel has the same files of Python, and a core of its own; those for x86-64 also have TensorFlow's op. All are
cross-compiled by the Python that runs this. The same sources make the same bytes again: no time, path or name of this
machine gets in.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Dict, Sequence, Tuple

from ddl.errors import Error
from release.systems import headers
from release.targets import GLIBC, WheelTarget, targets
from release.tensorflow_ops import place_ops
from release.toolchain import toolchain

__all__ = ["ROOT", "add_arguments", "needed_glibc", "pack_anew", "run"]

ROOT = Path(__file__).resolve().parents[1]
_MOST_BYTES = 3_000_000  # of a wheel


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add which wheels, and where they go."""
    parser.add_argument("--pythons", default="", help="only for these, for example 3.11,3.14")
    parser.add_argument("--machines", default="", help="only for these: x86_64,aarch64")
    parser.add_argument("--dest", type=Path, default=ROOT / "dist", help="where the files go (default: dist)")


def run(arguments: argparse.Namespace) -> int:
    """Build what the arguments name; return a status for the shell."""
    wanted = list(targets(arguments.pythons, arguments.machines))
    arguments.dest.mkdir(parents=True, exist_ok=True)
    epoch = _epoch()
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    archive = _sdist(arguments.dest, environ, epoch)
    sources = _unpack(archive)
    for target in wanted:
        begin = time.monotonic()
        wheel = _wheel(target, sources, arguments.dest, environ)
        _look(wheel)
        size, digest = wheel.stat().st_size, hashlib.sha256(wheel.read_bytes()).hexdigest()
        print(f"{wheel.name}  {size / 1e6:.2f} MB  {time.monotonic() - begin:.0f} s  sha256 {digest}", flush=True)
    return 0


def _epoch() -> int:
    """Return when the sources were committed: the time that all files get."""
    line = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(line, check=True, capture_output=True, text=True).stdout)


def _sdist(dest: Path, environ: Dict[str, str], epoch: int) -> Path:
    line = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(dest), str(ROOT)]
    subprocess.run(line, check=True, env=environ, stdout=subprocess.DEVNULL)
    archive = max(dest.glob("open_ddl-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    pack_anew(archive, epoch)
    print(f"{archive.name}  {archive.stat().st_size / 1e6:.2f} MB", flush=True)
    return archive


def pack_anew(archive: Path, epoch: int) -> None:
    """Pack an archive again, without the times and the owner that setuptools has put in."""
    with tarfile.open(archive) as tar:
        contents = [(member, tar.extractfile(member)) for member in sorted(tar.getmembers(), key=lambda m: m.name)]
        with (
            gzip.GzipFile(archive.with_suffix(".new"), "wb", mtime=epoch) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as anew,
        ):
            for member, content in contents:
                member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
                member.mode, member.pax_headers = 0o755 if member.isdir() or member.mode & 0o100 else 0o644, {}
                anew.addfile(member, content)
    archive.with_suffix(".new").replace(archive)


def _unpack(archive: Path) -> Path:
    """Return the sources out of the archive; what was built from them before is kept for what has not changed."""
    parent = ROOT / "build" / "wheels"
    sources = parent / archive.name[: -len(".tar.gz")]
    built = parent / "build"
    if (sources / "build").exists():
        shutil.rmtree(built, ignore_errors=True)
        (sources / "build").rename(built)
    shutil.rmtree(sources, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(parent, filter="data")
    if built.exists():
        built.rename(sources / "build")
    return sources


def _wheel(target: WheelTarget, sources: Path, dest: Path, environ: Dict[str, str]) -> Path:
    """Build the wheel of a target; return it."""
    for left in ("build/lib*", "build/bdist*"):
        for folder in sources.glob(left):
            shutil.rmtree(folder)
    programs = toolchain(target.machine, ROOT / "build" / "toolchains" / target.machine, sources)
    place_ops(target.machine, sources, programs["CXX"])
    built = {
        **environ,
        **programs,
        "DDL_PYTHON_INCLUDE": ":".join(map(str, headers(target))),
        "SETUPTOOLS_EXT_SUFFIX": target.suffix,
        "DDL_WHEEL_TAG": target.tag,
    }
    line = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dest), str(sources)]
    done = subprocess.run(line, env=built, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise Error(f"the wheel for {target} cannot be built:\n{done.stdout}")
    (wheel,) = dest.glob(f"open_ddl-*-{target.tag}.whl")
    return wheel


def needed_glibc(told: str) -> Tuple[int, int]:
    """Return the C library that a wheel needs by what ``auditwheel show`` told of it; (0, 0) if it does not say so.

    Not its first sentence, which does not know TensorFlow's library, that the op needs.
    """
    constraint = re.search(r'constrains the platform tag to "manylinux_(\d+)_(\d+)_', " ".join(told.split()))
    return (int(constraint[1]), int(constraint[2])) if constraint else (0, 0)


def _look(wheel: Path) -> None:
    """Raise ``Error`` if the wheel needs a newer C library than its name says, or is too large."""
    show = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    told = subprocess.run(show, check=True, capture_output=True, text=True).stdout
    if not (0, 0) < needed_glibc(told) <= tuple(map(int, GLIBC.split("."))):
        raise Error(f"auditwheel does not take {wheel.name}: {told}")
    if wheel.stat().st_size > _MOST_BYTES:
        raise Error(f"{wheel.name} has {wheel.stat().st_size} bytes, and should have {_MOST_BYTES} at most")
