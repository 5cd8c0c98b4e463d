"""``make gpu``: builds DDL in this checkout without a network, and runs the blocks of ``python -m benchmarks gpu``.

For a machine with a GPU that can reach no package registry. It installs nothing: the core is built with g++ alone and
lies in ``ddl/``, and programs find the checkout by PYTHONPATH. Needed are g++, a Python with its headers, numpy,
msgpack, and the headers of pybind11. What that Python lacks of these (and of what the tests need) may be carried along
in ``build/gpu-carry``, which ``make gpu-carry`` fills on a machine where everything is there. docs/gpu.md.

Runs with the standard library alone. Arguments are those of ``python -m benchmarks gpu``, or ``--build-only``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, List, Optional, Sequence

ROOT = Path(__file__).resolve().parent.parent
CARRIED = ROOT / "build" / "gpu-carry"
SITE = ROOT / "build" / "gpu-site"  #: what is taken of it: a module that Python has itself is not
OBJECTS = ROOT / "build" / "gpu-objects"
#: Modules that may be carried: Python and headers, which are the same for all versions of Python.
PURE = ("pybind11", "msgpack", "pytest", "_pytest", "pluggy", "iniconfig", "pytest_timeout", "packaging")
X86 = ("x86_64", "AMD64", "amd64")


class CannotBuild(Exception):
    """The machine lacks something; the message says what."""


def link_carried() -> None:
    """Let Python find what was carried along and it has not itself. Other calls may do so at the same time."""
    SITE.mkdir(parents=True, exist_ok=True)
    for name in PURE:
        if importlib.util.find_spec(name) is None:
            for carried in (CARRIED / name, CARRIED / f"{name}.py", *CARRIED.glob(f"{name}-*.dist-info")):
                if carried.exists():
                    with contextlib.suppress(FileExistsError):
                        (SITE / carried.name).symlink_to(carried)
    sys.path.append(str(SITE))


def pybind11_headers() -> Path:
    """Return the folder of pybind11's headers: of Python's own package, or of what was carried along."""
    spec = importlib.util.find_spec("pybind11")
    places = [Path(spec.origin).parent / "include"] if spec is not None and spec.origin else []
    places += [CARRIED / "pybind11" / "include", Path("/usr/include")]
    for place in places:
        if (place / "pybind11" / "pybind11.h").is_file():
            return place
    raise CannotBuild("there are no headers of pybind11: run 'make gpu-carry' elsewhere, and bring build/gpu-carry")


class CMakeRules:
    """What CMakeLists.txt says of flags, so that it says it once."""

    def __init__(self) -> None:
        text = re.sub(r"#.*", "", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
        match = re.search(r"add_compile_options\((-Wall[^)]*)\)", text)
        if match is None:
            raise CannotBuild("CMakeLists.txt has no compile options that this program knows")
        self.common = match.group(1).split()
        pattern = (
            r'set_source_files_properties\("\$\{CMAKE_SOURCE_DIR\}/([^"]+)" PROPERTIES\s+COMPILE_OPTIONS "([^"]+)"\)'
        )
        self.own: Dict[str, List[str]] = {
            file: re.sub(r"\$<\$<[^>]*>:([^>]*)>", r"\1", options).split(";")
            for file, options in re.findall(pattern, text)
        }
        foreign = "_generic.cc" if os.uname().machine in X86 else "_x86.cc"
        every = sorted((ROOT / "csrc").rglob("*.cc"))
        self.sources = [path for path in every if not path.name.endswith(foreign) and path.parent.name != "mpi"]

    def flags(self, source: Path) -> List[str]:
        """Return the flags of a source, without includes."""
        always = ["-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden"]
        return [*always, "-pthread", *self.common, *self.own.get(source.relative_to(ROOT).as_posix(), [])]


def run(line: Sequence[str]) -> None:
    """Run a compiler to its good end."""
    ended = subprocess.run(line, capture_output=True, text=True)
    if ended.returncode != 0:
        raise CannotBuild(f"{' '.join(line)}\n{ended.stderr.strip()[-3000:]}")


def build() -> Path:
    """Build ``ddl._core`` in its place, as far as sources are newer; return it."""
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise CannotBuild("there is no g++ (or what CXX names)")
    python = Path(sysconfig.get_path("include"))
    if not (python / "Python.h").is_file():
        raise CannotBuild(f"there is no {python}/Python.h: this Python's headers are missing (python3-dev)")
    rules, headers = CMakeRules(), pybind11_headers()
    objects = OBJECTS / (sys.implementation.cache_tag or "python")
    objects.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_mtime for path in [ROOT / "CMakeLists.txt", *(ROOT / "csrc").rglob("*.h")])
    lines: List[List[str]] = []
    wanted: List[Path] = []
    for source in rules.sources:
        target = objects / (source.relative_to(ROOT / "csrc").as_posix().replace("/", "-") + ".o")
        wanted.append(target)
        if not target.exists() or target.stat().st_mtime < max(newest, source.stat().st_mtime):
            includes = [f"-I{ROOT / 'csrc'}", "-isystem", str(python), "-isystem", str(headers)]
            lines.append([compiler, *rules.flags(source), *includes, "-c", str(source), "-o", str(target)])
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    extension = ROOT / "ddl" / f"_core{suffix}"
    if not lines and extension.exists():
        return extension
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(run, lines))
    linked = objects / "linked.so"
    run([compiler, "-shared", "-pthread", "-o", str(linked), *map(str, wanted), "-ldl"])
    shutil.copy2(linked, extension)
    return extension


def environment() -> Dict[str, str]:
    """Return the variables with which programs find this checkout, and what was carried along."""
    path: List[Optional[str]] = [str(ROOT), os.environ.get("PYTHONPATH"), str(SITE)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def main(arguments: List[str]) -> int:
    """Build, then become ``python -m benchmarks gpu``."""
    begin = time.time()
    link_carried()
    try:
        extension = build()
    except CannotBuild as reason:
        print(f"make gpu: {reason}", file=sys.stderr)
        return 1
    print(f"make gpu: {extension.relative_to(ROOT)} is built, {time.time() - begin:.0f} s", flush=True)
    if arguments[:1] == ["--build-only"]:
        return 0
    line = [sys.executable, "-m", "benchmarks", "gpu", "--began", f"{begin:.0f}", *arguments]
    os.chdir(ROOT)
    os.execve(sys.executable, line, environment())
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
