"""Explains the failure if DDL's unbuilt sources are imported in place of an installed DDL."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Sequence

__all__ = ["check_built"]


def check_built(folders: Sequence[str]) -> None:
    """Raise ImportError if there is no native core in the package of ``folders``."""
    if importlib.util.find_spec("ddl._core") is not None:
        return
    sources = Path(folders[0]).resolve()
    version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    raise ImportError(
        f"{sources} has the sources of DDL, without the native core for {version}. They were imported since a program "
        f"in {sources.parent}, or PYTHONPATH, comes before what is installed. Run the program in another folder; or "
        f"build the core there: 'make core' in {sources.parent}, or 'pip install --editable {sources.parent}'",
        name="ddl._core",
        path=str(sources),
    )
