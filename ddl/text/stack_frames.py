"""``StackFrame``: a line of a Python stack, and whose it is: the user's, DDL's, or a library's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

__all__ = ["StackFrame", "innermost_of_user"]

_ROOT = re.escape(str(Path(__file__).resolve().parents[2]))
#: DDL where it is installed, or in this checkout.
_OWN = re.compile(rf"(?:{_ROOT}|.*/(?:site|dist)-packages)/ddl(?:_[a-z]+)?/")
#: Python's own library, and what is frozen into the interpreter.
_LIBRARY = re.compile(r"<frozen |.*/lib(?:64)?/python3[^/]*/(?!(?:site|dist)-packages/)")


@dataclass(frozen=True)
class StackFrame:
    """A line of a stack."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}, in {self.function}"

    @property
    def is_library(self) -> bool:
        """Whether it is Python's own library."""
        return _LIBRARY.match(self.file) is not None

    @property
    def is_installed(self) -> bool:
        """Whether it is of an installed package."""
        return "-packages/" in self.file

    @property
    def is_own(self) -> bool:
        """Whether it is DDL."""
        return _OWN.match(self.file) is not None


def innermost_of_user(stack: Sequence[StackFrame]) -> Optional[StackFrame]:
    """Return the first frame of ``stack``, the innermost first, that is the user's: not Python's, DDL's or installed.

    If all others are installed, the first of these; None if there is none.
    """
    frames = [frame for frame in stack if not frame.is_library and not frame.is_own]
    return next((frame for frame in frames if not frame.is_installed), frames[0] if frames else None)
