"""What tools write for ``--json``, ``--svg`` and ``--plot FILE``; each file is named on stderr, with its size."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Mapping, Union

from ddl.text.units import bytes_text

__all__ = ["say_written", "write_json", "write_text"]


def write_json(path: Union[str, Path], content: Mapping[str, object], *, quiet: bool = False) -> None:
    """Write ``content`` to a file, and say so unless ``quiet``; for "-" to standard output."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        write_text(path, text, quiet=quiet)


def write_text(path: Union[str, Path], text: str, *, quiet: bool = False) -> None:
    """Write ``text`` to a file, and say so unless ``quiet``."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    if not quiet:
        say_written(path)


def say_written(path: Union[str, Path]) -> None:
    """Name a file that was written, and its size, on stderr: stdout may be read by a program."""
    print(f"wrote {path} ({bytes_text(os.path.getsize(path))})", file=sys.stderr)
