"""What is built for one sanitizer, and where: a copy of the package and its tests with a core of its own.

Everything lies in build/sanitize-NAME, so that the checkout's ddl/_core*.so stays what it is. Files are copied, not
linked: tests find the checkout by following links, and start Python there.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "sanitize"
_COPIED = ("ddl", "ddl_torch", "ddl_jax", "tests", "examples", "pyproject.toml", "README.md")
_NOT_COPIED = ("__pycache__", "*.so", "*.pyc")

#: Why each option: reports go to files, since ranks are grandchildren whose output nobody reads; a process that had one
#: ends with a status of its own; the newest stacks of a race matter more than speed.
_OPTIONS: Dict[str, Dict[str, str]] = {
    "thread": {
        "exitcode": "66",
        "second_deadlock_stack": "1",
        "history_size": "4",
        "atexit_sleep_ms": "0",  # tests measure how soon the end of a rank is noticed
        "suppressions": str(HERE / "thread.supp"),
        "print_suppressions": "0",
    },
    "address": {
        "exitcode": "66",
        "detect_leaks": "0",  # CPython keeps much until the end, and is not built to be told apart
        # gcc 12 lays 64-byte vectors at addresses that are multiples of 32 only when it moves locals off the stack for
        # this: the AVX-512 kernels then die of their own aligned stores.
        "detect_stack_use_after_return": "0",
        "strict_init_order": "1",
        "allocator_may_return_null": "1",  # tests ask for more memory than there is, and expect an exception
    },
    "undefined": {"print_stacktrace": "1", "suppressions": str(HERE / "undefined.supp")},
}
_WITH_NAMES = "-DCMAKE_BUILD_TYPE=RelWithDebInfo"  # other builds are stripped, and reports would have only addresses
_VARIABLES = {"thread": "TSAN_OPTIONS", "address": "ASAN_OPTIONS", "undefined": "UBSAN_OPTIONS"}
#: What must be in the process before the core is. AddressSanitizer looks for the functions of libstdc++ when it starts;
#: Python alone does not bring them, and the first exception would end the process.
_RUNTIMES = {"thread": ["libtsan.so"], "address": ["libasan.so", "libstdc++.so"]}


@dataclass(frozen=True)
class Build:
    """The build for one sanitizer: ``thread``, ``address`` or ``undefined``.

    Not for two at once: gcc links a runtime library for each, and in a process that has both, what the one for
    undefined behaviour reports goes to the standard error of a rank, where nobody sees it.
    """

    name: str

    @property
    def folder(self) -> Path:
        return ROOT / "build" / f"sanitize-{self.name}"

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    def environment(self) -> Dict[str, str]:
        """What a process needs so that its reports, and those of its children, are found."""
        env = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        options = {"log_path": str(self.reports / "report"), **_OPTIONS[self.name]}
        env[_VARIABLES[self.name]] = ":".join(f"{key}={value}" for key, value in options.items())
        if self.name in _RUNTIMES:
            env["LD_PRELOAD"] = " ".join(map(runtime, _RUNTIMES[self.name]))
        return env

    def program(self, *line: str) -> List[str]:
        """``line`` as it must be started: ThreadSanitizer wants addresses where it expects them."""
        fixed = ["setarch", "-R"] if self.name == "thread" and _can_fix_addresses() else []
        return [*fixed, *line]

    def make(self) -> None:
        """Build the core, copy the package and its tests, and empty the folder of reports."""
        arguments = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(self.folder)]
        env = {**os.environ, "DDL_CMAKE_ARGS": f"-DDDL_SANITIZE={self.name} {_WITH_NAMES}"}
        subprocess.run(arguments, cwd=ROOT, env=env, check=True)
        for name in _COPIED:
            _copy(ROOT / name, self.folder / name)
        shutil.rmtree(self.reports, ignore_errors=True)
        self.reports.mkdir()

    def compile(self, target: Path, sources: Sequence[Path], headers: Sequence[Path], *flags: str) -> None:
        """Make ``target`` of C++ sources of the tests, if one of the files is newer, with the flags of the core."""
        if target.exists() and all(path.stat().st_mtime < target.stat().st_mtime for path in [*sources, *headers]):
            return
        compiler = os.environ.get("CXX", "g++")
        common = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={self.name}", "-pthread", *flags]

        def compiled(source: Path) -> Path:
            object_file = target.with_name(f"{target.name}-{source.stem}.o")
            subprocess.run([compiler, *common, "-c", "-o", str(object_file), str(source)], check=True)
            return object_file

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, sources))
        subprocess.run([compiler, *common, "-o", str(target), *map(str, objects)], check=True)


def runtime(name: str) -> str:
    """Return where the compiler keeps the runtime library ``name``."""
    answer = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(answer.stdout.strip())
    if not path.is_absolute():
        raise SystemExit(f"sanitize: gcc has no {name} (Debian: it comes with g++, in libgcc-*-dev)")
    return str(path.resolve())


def _can_fix_addresses() -> bool:
    if shutil.which("setarch") is None:
        return False
    return subprocess.run(["setarch", "-R", "true"], capture_output=True, check=False).returncode == 0


def _copy(source: Path, target: Path) -> None:
    """Make ``target`` what ``source`` is, but for build products, which stay."""
    if source.is_file():
        if not (target.exists() and filecmp.cmp(source, target, shallow=False)):
            shutil.copy2(source, target)
        return
    for old in target.rglob("*.py"):
        if not (source / old.relative_to(target)).exists():
            old.unlink()
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_NOT_COPIED), dirs_exist_ok=True)
