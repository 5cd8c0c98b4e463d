"""Writes the files for ``--json``, ``--svg`` and ``--plot FILE``, and prints their names and sizes on stderr."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Mapping, Union

from ddl.text.units import bytes_text

__all__ = ["say_written", "write_json", "write_text"]


def write_json(path: Union[str, Path], content: Mapping[str, object], *, quiet: bool = False) -> None:
    """Write ``content`` to a file, and print its name unless ``quiet``; if ``path`` is "-", write to stdout."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        write_text(path, text, quiet=quiet)


def write_text(path: Union[str, Path], text: str, *, quiet: bool = False) -> None:
    """Write ``text`` to a file, and print its name unless ``quiet``."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    if not quiet:
        say_written(path)


def say_written(path: Union[str, Path]) -> None:
    """Print the name and the size of a written file on stderr, because a program may read stdout."""
    print(f"wrote {path} ({bytes_text(os.path.getsize(path))})", file=sys.stderr)
