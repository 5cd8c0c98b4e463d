"""``python -m release check``: looks whether what lies in dist/ can be published. docs/releasing.md has the steps."""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Dict, Iterator, Sequence, Set

from ddl._version import __version__
from release.targets import targets
from release.tensorflow_ops import OPS_FOR, PREBUILT, op_files
from release.wheel_lint import lint
from release.wheels import ROOT

__all__ = ["add_arguments", "of_contents", "run"]

_SUMS = "SHA256SUMS"


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add where the files are."""
    parser.add_argument("--dest", type=Path, default=ROOT / "dist", help="where the files are (default: dist)")


def run(arguments: argparse.Namespace) -> int:
    """Say what is wrong; if nothing is, write the hashes of all files. Return a status for the shell."""
    dest: Path = arguments.dest
    wheels = {target.tag: dest / f"open_ddl-{__version__}-{target.tag}.whl" for target in targets()}
    files = [dest / f"open_ddl-{__version__}.tar.gz", *wheels.values()]
    wrong = [*_of_the_checkout(), *_of_the_changelog(), *_of_the_folder(dest, files)]
    there = [path for path in files if path.exists()]
    if there:
        wrong += _of_metadata(there)
        built = [path for path in there if path.suffix == ".whl"]
        wrong += [problem for path in built for problem in lint(path)]
        wrong += of_contents(built)
    for problem in wrong:
        print(f"release: {problem}", file=sys.stderr)
    if wrong:
        return 1
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (dest / _SUMS).write_text(sums)
    print(sums, end="")
    print(f"open-ddl {__version__} is ready: {len(files)} files, and {dest / _SUMS} for the release notes")
    return 0


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


def _of_the_checkout() -> Iterator[str]:
    if not (ROOT / ".git").exists():
        yield f"{ROOT} is no checkout of git, so nobody can tell which commit this is"
        return
    if _git("status", "--porcelain"):
        yield "files of the checkout are changed: commit them, and build again"
    if f"v{__version__}" not in _git("tag", "--points-at", "HEAD").split():
        yield f"this commit has no tag: git tag --annotate v{__version__}"


def _of_the_changelog() -> Iterator[str]:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(rf"^## {re.escape(__version__)} \((.*)\)$", text, re.MULTILINE)
    if heading is None:
        yield f"CHANGELOG.md has no entry '## {__version__} (DATE)'"
    elif re.fullmatch(r"\d{4}-\d{2}-\d{2}", heading[1]) is None:
        yield f"CHANGELOG.md: the entry of {__version__} has '{heading[1]}' where its date belongs, as 2026-01-31"


def _of_the_folder(dest: Path, files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        if not path.exists():
            yield f"{path} is missing: run `make wheels`"
    for path in sorted(dest.glob("open_ddl-*")):
        if path not in files:
            yield f"{path} is of another version, or for a target that we do not know: remove it"


def _of_metadata(files: Sequence[Path]) -> Iterator[str]:
    line = [sys.executable, "-m", "twine", "check", "--strict", *(str(path) for path in files)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        yield f"twine complains: {done.stdout}{done.stderr}"


def of_contents(wheels: Sequence[Path]) -> Iterator[str]:
    """Yield where wheels differ: all have the same files of Python, native modules, and the ops of their processor."""
    contents: Dict[str, Set[str]] = {}
    for path in wheels:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if ".dist-info/" not in entry.filename]
            ops = [entry.filename for entry in entries if entry.filename.startswith(PREBUILT)]
            cores = [
                entry.filename for entry in entries if entry.filename.endswith(".so") and entry.filename not in ops
            ]
            alike = [entry for entry in entries if entry.filename not in (*cores, *ops)]
            contents[path.name] = {f"{entry.filename} {entry.CRC}" for entry in alike}
        if [name.split(".")[0] for name in sorted(cores)] != ["ddl/_core", "ddl_jax/_mpi"]:
            yield f"{path.name} has the native modules {cores}, and should have ddl/_core and ddl_jax/_mpi"
        expected = op_files() if path.name.endswith(f"_{OPS_FOR}.whl") else []
        if sorted(ops) != sorted(expected):
            yield f"{path.name} has {ops or 'no op'} of TensorFlow, and should have {expected or 'none'}"
    usual = next(iter(contents.values()), set())
    for name, files in contents.items():
        for different in sorted({line.split()[0] for line in files ^ usual})[:3]:
            yield f"{name} differs from the other wheels in {different}"
