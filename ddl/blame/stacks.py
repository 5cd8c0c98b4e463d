"""Where a process is in its Python program, by its stacks as ``faulthandler`` writes them."""

from __future__ import annotations

import re
from typing import List, Optional

from ddl.text.stack_frames import StackFrame, innermost_of_user

__all__ = ["StackFrame", "in_user_code", "main_stack", "user_frame"]

_FRAME = re.compile(r'^\s*File "([^"]*)", line (\d+|\?\?\?) in (.*)$')


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
    return innermost_of_user(main_stack(stacks))
