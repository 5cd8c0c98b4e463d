"""The last lines of a rank for a report. Of a traceback: the user's frames and the error, without DDL's frames."""

from __future__ import annotations

import re
from typing import List, Sequence, Tuple

from ddl.text.stack_frames import StackFrame

__all__ = ["LINES", "for_report"]

LINES = 20  #: that a report shows
_FRAME = re.compile(r'(\s*)File "([^"]+)", line \d+')
_CHAINS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


def for_report(lines: Sequence[str], most: int = LINES) -> List[str]:
    """Return the last ``most`` of ``lines`` without DDL's frames, and without tracebacks that had no others.

    Where the error is one of DDL's, frames of what is installed are left out, too.

    If the last traceback has only frames of DDL, it is kept: the fault is DDL's, and these frames show it.
    """
    parts = _chained(lines)
    kept: List[str] = []
    for number, part in enumerate(parts):
        short, users, own = _without_own(part)
        last = number == len(parts) - 1
        if users or not own:
            kept += short
        elif last:
            kept += part
    return kept[-most:]


def _chained(lines: Sequence[str]) -> List[List[str]]:
    """Cut behind each line that leads from a traceback to the one that it caused."""
    parts: List[List[str]] = [[]]
    for line in lines:
        parts[-1].append(line)
        if line.strip() in _CHAINS:
            parts.append([])
    return parts


def _without_own(lines: Sequence[str]) -> Tuple[List[str], int, int]:
    """Return the lines without DDL's frames, and how many frames were the user's and DDL's."""
    kept: List[str] = []
    users = own = 0
    of_ddl = any(line.startswith("ddl.errors.") for line in lines)
    indent = -1  # of the frame of DDL's that we are in
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            shown = StackFrame(frame[2], "", "")
            is_own = shown.is_own or shown.file.startswith("<frozen ")
            # Between the user's program and DDL there may be a framework, which an error of DDL's is not about.
            is_own |= of_ddl and (shown.is_library or shown.is_installed)
            users, own = users + (not is_own), own + is_own
            indent = len(frame[1]) if is_own else -1
        elif indent >= 0 and len(line) - len(line.lstrip()) <= indent:
            indent = -1  # behind the frame's source
        if indent < 0:
            kept.append(line)
    return kept, users, own
