"""The compiler of wheels: ``zig c++``, which is Clang with the C libraries of each version and processor."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Dict

from release.targets import GLIBC

__all__ = ["toolchain"]

_PROGRAMS = {"cc": "cc", "c++": "c++", "ar": "ar", "ranlib": "ranlib"}  # by what CMake calls them


def toolchain(machine: str, folder: Path, sources: Path) -> Dict[str, str]:
    """Write the programs for a processor to ``folder``; return the environment in which setup.py uses them.

    sources: what is compiled; its path is not to be seen in the result, so that two builds are equal.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, program in _PROGRAMS.items():
        target = f"-target {machine}-linux-gnu.{GLIBC} " if program in ("cc", "c++") else ""
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ziglang {program} {target}"$@"\n')
        path.chmod(0o755)
    options = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": machine,
        "CMAKE_AR": folder / "ar",
        "CMAKE_RANLIB": folder / "ranlib",
        "CMAKE_CXX_FLAGS": f"-ffile-prefix-map={sources}=.",
    }
    return {
        "CC": str(folder / "cc"),
        "CXX": str(folder / "c++"),
        "DDL_CMAKE_ARGS": shlex.join(f"-D{name}={value}" for name, value in options.items()),
    }
