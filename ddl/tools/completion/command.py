"""``ddl completion bash``: prints a script; a shell that has read it completes ddlrun, ddl and ddl-caffe at TAB.

A wheel brings the scripts as files, which are printed as they are, so that a shell may ask for one at each start. In a
checkout they are made from the parsers. Status 0. docs/completion.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Sequence

__all__ = ["SHELLS", "add_arguments", "run"]

SHELLS = ("bash", "zsh", "fish")
#: Where the build of a wheel puts them; a checkout has no such folder.
_READY = Path(__file__).resolve().parent / "scripts"


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl completion``."""
    parser.add_argument("shell", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")


def run(arguments: argparse.Namespace) -> int:
    """Print the script; return the exit status."""
    ready = _READY / f"completion.{arguments.shell}"
    if ready.is_file():
        print(ready.read_text(encoding="utf-8"), end="")
        return 0
    from ddl.tools.completion.share import script

    print(script(arguments.shell), end="")
    return 0
