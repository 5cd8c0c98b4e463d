"""Where a process is in its Python program, by its stacks as ``faulthandler`` writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

__all__ = ["StackFrame", "in_user_code", "main_stack", "user_frame"]

_FRAME = re.compile(r'^\s*File "([^"]*)", line (\d+|\?\?\?) in (.*)$')
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
    def is_own(self) -> bool:
        """Whether it is DDL."""
        return _OWN.match(self.file) is not None


def main_stack(stacks: str) -> List[StackFrame]:
    """Return the frames of the main thread, the innermost first. ``faulthandler`` writes that thread last."""
    frames: List[StackFrame] = []
    for line in stacks.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            frames.append(StackFrame(frame[1], frame[2], frame[3]))
        elif line.rstrip().endswith("(most recent call first):"):
            frames = []
    return frames


def in_user_code(stacks: str) -> bool:
    """Return whether the main thread is known to be outside of DDL."""
    frame = next((frame for frame in main_stack(stacks) if not frame.is_library), None)
    return frame is not None and not frame.is_own


def user_frame(stacks: str) -> Optional[StackFrame]:
    """Return the innermost frame of the main thread that is the user's: not Python's, not DDL's, not installed."""
    frames = [frame for frame in main_stack(stacks) if not frame.is_library and not frame.is_own]
    return next((frame for frame in frames if "-packages/" not in frame.file), frames[0] if frames else None)
