"""The versions that DDL is tested with: what constraints.txt says, for any Python."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from packaging.requirements import Requirement

__all__ = ["pinned"]

_FILE = Path(__file__).resolve().parents[1] / "constraints.txt"


def pinned(package: str, python: str) -> Optional[str]:
    """Return the version of a package for a Python, such as ``3.9``; None if that Python is tested without it."""
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{package}=="):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
                (specifier,) = requirement.specifier
                return specifier.version
    return None
