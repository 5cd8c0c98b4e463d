"""``python -m release matrix``: installs each wheel of dist/ in a system without a compiler, and trains on two ranks.

Wheels for another processor run by qemu. On x86-64 the ranks also run on a processor without AVX2, which qemu emulates.
The table of docs/install.md is written anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence

from ddl.errors import ConfigError
from release.pins import pinned
from release.systems import program, system_for
from release.targets import WheelTarget, targets
from release.wheels import ROOT

__all__ = ["add_arguments", "run"]

_TABLE = ROOT / "docs" / "install.md"
_BEGIN, _END = "<!-- made by `make wheels` -->\n", "<!-- end -->\n"
_NEEDS = ("pip", "numpy", "msgpack")
#: Tried, too, on x86-64, for the Pythons that have them: the package, and what its version ends with. A torch for CUDA
#: would be 3 GB for each.
_FRAMEWORKS = {"torch": "+cpu", "tensorflow-cpu": ""}
#: What others need on a Python before 3.10. ``pip download`` does not know: it looks at the Python that runs it.
_BEFORE_3_10 = ("importlib-metadata",)
_NAMES = {"torch": "torch", "tensorflow": "TensorFlow"}
_SECONDS = 900.0  # of a trial; qemu takes a minute or two
_OLD_PROCESSOR = "/shared/qemu-x86_64-static -cpu Nehalem"  # SSE4.2, as numpy wants; no AVX


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add which wheels, and where they are."""
    parser.add_argument("--pythons", default="", help="only for these, for example 3.11,3.14; then no table is written")
    parser.add_argument("--machines", default="", help="only for these: x86_64,aarch64; then no table is written")
    parser.add_argument("--dest", type=Path, default=ROOT / "dist", help="where the wheels are (default: dist)")


def run(arguments: argparse.Namespace) -> int:
    """Try what the arguments name; return a status for the shell."""
    rows: List[List[str]] = []
    failed = 0
    for target in targets(arguments.pythons, arguments.machines):
        wheels = list(arguments.dest.glob(f"open_ddl-*-{target.tag}.whl"))
        if len(wheels) != 1:
            raise ConfigError(f"{arguments.dest} has {len(wheels)} wheels for {target}: run `make wheels`")
        try:
            seen = _try(target, wheels[0])
        except RuntimeError as error:
            failed += 1
            print(f"{target}: FAILED: {error}", flush=True)
            continue
        rows.append(_row(target, wheels[0], seen))
        print("  ".join(rows[-1]), flush=True)
    if not failed and not arguments.pythons and not arguments.machines:
        _write(rows)
    return 1 if failed else 0


def _try(target: WheelTarget, wheel: Path) -> Dict[str, Any]:
    """Return what trial.py has seen; ``RuntimeError`` if it fails."""
    system = system_for(target)
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder)
        shutil.copy(wheel, shared)
        shutil.copy(Path(__file__).with_name("trial.py"), shared)
        _download(target, shared, [*_NEEDS, *(["tomli"] if target.version < (3, 11) else [])])
        environ = []
        if target.machine == "x86_64":
            shutil.copy(program("qemu-x86_64-static"), shared)
            environ = [f"EMULATOR={_OLD_PROCESSOR}"]
            _add_frameworks(target, shared)
        words = ["/usr/bin/env", *environ, system.python, "/shared/trial.py", "/shared"]
        try:
            done = system.run(words, _SECONDS, shared)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"it has not ended within {_SECONDS:g} s; try again") from error
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    seen: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def _download(target: WheelTarget, folder: Path, names: Sequence[str]) -> None:
    """Get wheels of what DDL needs, for the Python and the processor of the target."""
    platforms = [f"--platform=manylinux_2_{minor}_{target.machine}" for minor in (28, 27, 17, 5)]
    platforms += [f"--platform=manylinux2014_{target.machine}", "--platform=any"]
    line = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    line += [*platforms, f"--python-version={target.python}", "--implementation=cp", "--dest", str(folder), *names]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pip cannot download {', '.join(names)}: {done.stderr}")


def _add_frameworks(target: WheelTarget, folder: Path) -> None:
    """Get the frameworks that DDL is tested with on the target; say which cannot be had."""
    needs = [*_NEEDS, *(_BEFORE_3_10 if target.version < (3, 10) else [])]
    for package, local in _FRAMEWORKS.items():
        version = pinned(package, target.python)
        if version is None:
            print(f"{target}: not tried with {package}: constraints.txt has none for it", flush=True)
            continue
        name = f"{package}=={version}{local}"
        try:
            _download(target, folder, [name, *needs])
        except RuntimeError:
            print(f"{target}: not tried with {package}: pip finds no {name} for it", flush=True)


def _row(target: WheelTarget, wheel: Path, seen: Dict[str, Any]) -> List[str]:
    size = f"{wheel.stat().st_size / 1e6:.2f} MB"
    way = "qemu" if target.machine == "aarch64" else "and without AVX2 (qemu)"
    frameworks = ", ".join(f"{name} {seen[key]}" for key, name in _NAMES.items() if key in seen)
    times = [f"{seen['installed_s']:.1f} s", f"{seen['imported_s']:.2f} s"]
    return [target.python, target.machine, size, f"{seen['python']}, {way}", frameworks, *times]


def _write(rows: Sequence[Sequence[str]]) -> None:
    head = ["Python", "processor", "wheel", "two ranks ran on", "with", "`pip install`", "`import ddl`"]
    lines = [head, ["---"] * len(head), *rows]
    table = "".join(f"| {' | '.join(row)} |\n" for row in lines)
    text = _TABLE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _TABLE.write_text(f"{before}{_BEGIN}{table}{_END}{after}", encoding="utf-8")
