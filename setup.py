"""Builds ``ddl._core``, and JAX's library beside it, with CMake; all else about the package is in pyproject.toml.

One CMake build directory for the engine and one per Python version, for each set of options, is kept under build/, so
that a second build is incremental, and one for another Python takes the engine as it is (where its ninja is of the same
version: each has its own way to tell that a command has changed). A directory that came from elsewhere with a copied or
moved checkout, or is another compiler's, is discarded. ``DDL_CMAKE_ARGS`` adds options, for example
``DDL_CMAKE_ARGS="-DDDL_SANITIZE=thread"``. CMake and ninja come from PyPI as build requirements; the ones of the system
are used only where those are not installed.

Wheels for other Pythons and processors (release/wheels.py) are built by any Python: ``CXX`` is then a compiler for
that processor, ``DDL_PYTHON_INCLUDE`` has the folders of that Python's headers, with colons between,
``SETUPTOOLS_EXT_SUFFIX`` is how its extensions end, and ``DDL_WHEEL_TAG`` is the tag of the wheel.
"""

from __future__ import annotations

import importlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import List

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def tool(name: str) -> str:
    """Return the path of the program ``name``: out of the PyPI wheel of that name, else the system's."""
    try:
        wheel = importlib.import_module(name)
    except ImportError:
        directory = None
    else:
        directory = getattr(wheel, "CMAKE_BIN_DIR" if name == "cmake" else "BIN_DIR", None)
    program = shutil.which(name, path=directory) or shutil.which(name)
    if program is None:
        raise SystemExit(f"ddl: building ddl._core needs {name}, which was not found: run `pip install {name}`")
    return program


def origin() -> str:
    """Return what makes a build directory useless to others: where it is, and with which compiler and C library."""
    compiler = os.environ.get("CXX") or "c++"
    try:
        version = subprocess.run(
            [*shlex.split(compiler), "--version"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        version = ""  # CMake says what it found instead, or that there is none
    return "\n".join([str(ROOT), *platform.libc_ver(), compiler, version])


def settle(directory: Path) -> None:
    """Make ``directory`` if it is not there, and anew if it is of another origin: CMake would refuse it, or use it."""
    stamp, here = directory / "origin", origin()
    if directory.exists() and (not stamp.exists() or stamp.read_text(encoding="utf-8") != here):
        print(f"ddl: {directory} was made elsewhere or by another compiler; it is made anew", flush=True)
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    stamp.write_text(here, encoding="utf-8")


def run(command: List[str], *, shown: bool = False) -> None:
    """Run a command; unless it is ``shown``, what it says is seen only if it fails: else it is many lines."""
    pipe = None if shown else subprocess.PIPE
    done = subprocess.run(command, stdout=pipe, stderr=None if shown else subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout or ''}ddl: ddl._core could not be built: {shlex.join(command)}")


def build(part: str, target: str, *options: str) -> Path:
    """Have CMake build ``target``, of CMakeLists.txt, in a directory for ``part``, which is returned."""
    extra = shlex.split(os.environ.get("DDL_CMAKE_ARGS", ""))
    variant = f"-{zlib.crc32(' '.join(extra).encode()):08x}" if extra else ""
    directory = ROOT / "build" / f"cmake-{part}-{sysconfig.get_platform()}{variant}"
    settle(directory)
    cmake, ninja = tool("cmake"), f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"
    run([cmake, "-S", str(ROOT), "-B", str(directory), "-G", "Ninja", ninja, *options, *extra])
    watched = sys.stdout.isatty()  # there, ninja says on one line how far it is
    run([cmake, "--build", str(directory), "--target", target, *([] if watched else ["--", "--quiet"])], shown=watched)
    return directory


class CMakeBuild(build_ext):
    """Hands the extensions to CMake; setuptools only says where the results belong."""

    def build_extension(self, ext: Extension) -> None:
        import pybind11

        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        name, suffix = target.name.split(".", 1)
        include = os.environ.get("DDL_PYTHON_INCLUDE") or sysconfig.get_path("include")
        engine = build("engine", "engine") / "libengine.a"
        extension = build(
            suffix.split(".")[0],
            name,
            f"-DDDL_ENGINE={engine}",
            f"-DDDL_PYTHON_INCLUDE={';'.join([*include.split(':'), pybind11.get_include()])}",
            f"-DDDL_SUFFIX={suffix}",
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(extension / target.name, target)


class TaggedWheel(bdist_wheel):
    """A wheel for another Python or processor than those that build it, if ``DDL_WHEEL_TAG`` says so."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        tag = os.environ.get("DDL_WHEEL_TAG", f"{python}-{abi}-{platform}").split("-")
        return tag[0], tag[1], tag[2]


def refuse_free_threading() -> None:
    """Stop where Python runs threads at once: DDL holds its own state under the rule that it does not."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise SystemExit(
            f"ddl: this is a free-threaded Python, {version}t, for which there is no DDL yet; take python{version}"
        )


if __name__ == "__main__":
    refuse_free_threading()
    sys.path.insert(0, str(ROOT))
    from environments.shell_files import SHELL_FILES  # it is beside this file, where builds do not look

    setup(
        ext_modules=[Extension("ddl._core", sources=[]), Extension("ddl_jax._mpi", sources=[])],
        cmdclass={"build_ext": CMakeBuild, "bdist_wheel": TaggedWheel, **SHELL_FILES},
        data_files=[("share", [])],
    )
