"""Where this process's program is: over which operations its threads sleep, and at which line of the user's.

Ranks tell the store when one of them waits for long. So error messages can say what each rank waits for, and the store
finds ranks that wait for one another (ddl/store/deadlock.py). Nothing here is called while operations make progress.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ddl import _core
from ddl.bootstrap.agent_records import Member
from ddl.text.stack_frames import StackFrame, innermost_of_user

__all__ = ["Whereabouts", "call_in", "where_is"]


@dataclass(frozen=True)
class Whereabouts:
    """``waits``: the operations (``ddl.store.deadlock.Wait``) over which threads sleep, if all do that may call DDL.

    ``doing``: ``is at train.py:12 in main``, or ``waits in barrier() at train.py:12 in main``; empty: not known.
    """

    waits: List[Tuple[int, int, int]]
    doing: str


@dataclass(frozen=True)
class _Asleep:
    """A thread sleeps until an operation has ended."""

    member: Member
    sequence: int  # 0: a message
    needs: int  # a rank of the communicator without which it cannot end; -1: all; below: not known

    @property
    def wait(self) -> Tuple[int, int, int]:
        return self.member.number, self.sequence, self.member.ranks[self.needs] if self.needs >= 0 else self.needs


def where_is(members: Sequence[Member]) -> Whereabouts:
    """Return where the program of this process is. ``members``: all its communicators."""
    asleep = _asleep(members)
    stacks = {thread: _stack(frame) for thread, frame in sys._current_frames().items()}
    known = _core.submitters() | {thread for member in members for thread in list(member.named.waiting)}
    callers = [thread for thread, stack in stacks.items() if _may_call(stack, thread in known)]
    over = {thread: _over(thread, members, asleep) for thread in callers}
    waits = _waits(over, asleep) if _asleep(members) == asleep else []
    return Whereabouts(waits, _doing(members, over, stacks))


def call_in(member: Member, sequence: int) -> str:
    """Return, for people, what this process waits for where that communicator waits for its operation ``sequence``."""
    if member.named.is_used:
        texts = [*(text() for text in list(member.named.waiting.values())), *member.named.texts()]
        return texts[0] if texts else "named operations"
    text = member.core.call_text(sequence) if sequence else "a message"
    return f"{text} of {member.title}" if member.title else text


def _asleep(members: Sequence[Member]) -> Dict[int, _Asleep]:
    return {
        thread: _Asleep(member, sequence, needs)
        for member in members
        for thread, sequence, needs in member.core.sleepers()
    }


def _over(thread: int, members: Sequence[Member], asleep: Dict[int, _Asleep]) -> Optional[_Asleep]:
    """Return over what a user's thread sleeps; None if it does not."""
    if thread in asleep:
        return asleep[thread]
    for member in members:
        if thread in member.named.waiting:  # for the thread that agrees with other ranks
            return next((other for other in asleep.values() if other.member is member), None)
    return None


def _waits(over: Dict[int, Optional[_Asleep]], asleep: Dict[int, _Asleep]) -> List[Tuple[int, int, int]]:
    """Return over what all threads sleep. DDL's own count, too: one may make a user's next call when it wakes."""
    if not over or None in over.values():
        return []
    if any(each.sequence == 0 or each.needs < -1 for each in asleep.values()):
        return []
    waits: Set[Tuple[int, int, int]] = {each.wait for each in asleep.values()}
    return sorted(waits)


def _doing(members: Sequence[Member], over: Dict[int, Optional[_Asleep]], stacks: Dict[int, List[StackFrame]]) -> str:
    main = threading.main_thread().ident or 0
    sleeping = [thread for thread, asleep in over.items() if asleep is not None]
    thread = main if main in sleeping or not sleeping else min(sleeping)
    asleep = over.get(thread)
    frame = innermost_of_user(stacks.get(thread, []))
    place = f" at {_short(frame.file)}:{frame.line} in {frame.function}" if frame is not None else ""
    if asleep is None:
        return f"is{place}" if place else ""
    own = asleep.member.named.waiting.get(thread)
    return f"waits in {own() if own is not None else call_in(asleep.member, asleep.sequence)}{place}"


def _may_call(stack: List[StackFrame], has_called: bool) -> bool:
    """Return whether it is a thread that may call DDL: one that has, or that runs code of the user's.

    DDL has threads that make calls, too, for what users have submitted: these are none.
    """
    others = [frame for frame in stack if not frame.is_own and not frame.is_library]
    return bool(others) and (has_called or not all(frame.is_installed for frame in others))


def _stack(frame: Optional[types.FrameType]) -> List[StackFrame]:
    stack = []
    while frame is not None:
        stack.append(StackFrame(frame.f_code.co_filename, str(frame.f_lineno), frame.f_code.co_name))
        frame = frame.f_back
    return stack


def _short(file: str) -> str:
    """Return a path as the user would write it: from the working directory, where it is below that."""
    try:
        below = os.path.relpath(file)
    except (OSError, ValueError):  # the working directory has gone, say
        return file
    return file if below.startswith("..") else below
