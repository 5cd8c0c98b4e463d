"""Lets others on the host see where the Python threads of a rank are, also if one of them holds Python's lock.

In a rank, a thread of its own waits at a pipe (``let_stacks_be_read``). Whoever wants the stacks writes a byte to it,
by ``/proc/PID/fd``, and reads the answer from a memfd in the same way (``python_stacks``). The thread has Python's lock
while it writes, so no other thread moves meanwhile.

While a C function keeps Python's lock, no thread can answer. Then the rank is sent a signal, whose handler, from
``faulthandler``, needs no lock. It shows the main thread only, in which it runs: other threads may move, or
end, while their stacks are read, and that ends the process with SIGSEGV (healthy ranks were lost by it). A process that
is stopped, or waits in the kernel for a device, cannot answer at all.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import os
import signal
import time
from typing import Dict, Iterable, List, Optional

from ddl import clock
from ddl.records.process import open_memfds, process_state

__all__ = ["PATIENCE", "STACKS_SIGNAL", "let_stacks_be_read", "python_stacks"]

#: The C library uses those below SIGRTMIN, debuggers the last ones.
STACKS_SIGNAL = signal.SIGRTMIN + 7
PATIENCE = 0.6  #: seconds to wait for all that are asked; they need a millisecond
_OF_THREAD = 0.4  # of these, for the thread; the rest is for the handler of the signal
_NAME = "ddl-stacks"
_END = b"(end)\n"  # behind each answer of the thread
_MOST = 1 << 20  # bytes of an answer, and of old ones that are kept

_owner = 0  # the process that answers: a fork has the descriptors, too, but not the thread


def let_stacks_be_read() -> bool:
    """Answer who asks from now on, as long as the process lives; return whether it does. Idempotent.

    There is no way back: a signal that is just being sent would end a process that has ceased to catch it.

    It does not where the program has a handler of its own for ``STACKS_SIGNAL``, or where there are no memfds.
    """
    global _owner
    if _owner == os.getpid():
        return True
    if not hasattr(os, "memfd_create") or signal.getsignal(STACKS_SIGNAL) != signal.SIG_DFL:
        return False
    memory = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    questions, ask = os.pipe()  # it stays open for writing, too: so there is always somebody who may ask
    header = b"%d %d\n" % (os.getpid(), ask)
    os.write(memory, header)
    faulthandler.register(STACKS_SIGNAL, file=memory, all_threads=False, chain=False)
    # Not of ``threading``: programs that count their threads, or wait for all, do not mean this one.
    _thread.start_new_thread(_answer, (questions, memory, len(header)))
    _owner = os.getpid()
    return True


def _answer(questions: int, memory: int, header: int) -> None:
    """Write the stacks of all threads to ``memory`` whenever somebody asks; several who ask at once get one answer."""
    while os.read(questions, 4096):
        if os.fstat(memory).st_size > _MOST:
            os.ftruncate(memory, header)
            os.lseek(memory, header, os.SEEK_SET)
        faulthandler.dump_traceback(file=memory, all_threads=True)
        os.write(memory, _END)


def python_stacks(pids: Iterable[int]) -> Dict[int, str]:
    """Return the stacks of the Python threads of processes, the innermost frame first; empty if one cannot answer.

    All are asked at once, and waited for at most ``PATIENCE`` seconds. Only those are asked that have said that they
    answer: the signal would end any other process.
    """
    begin = clock.now()
    stacks = dict.fromkeys(pids, "")
    asked = [question for pid in stacks for question in [_Question.to(pid)] if question is not None]
    try:
        late = _await([question for question in asked if question.ask()], begin + _OF_THREAD)
        late = [question for question in late if question.send_signal()]
        _await(late, begin + PATIENCE)
        for question in asked:
            stacks[question.pid] = question.text()
    finally:
        for question in asked:
            os.close(question.memory)
    return stacks


class _Question:
    """A process that is asked. ``memory``: its memfd, whose first line says who answers, and at which pipe."""

    def __init__(self, pid: int, memory: int, pipe: int) -> None:
        self.pid, self.memory, self._pipe = pid, memory, pipe
        self._begin = self._size = os.fstat(memory).st_size
        self._signalled = False

    @classmethod
    def to(cls, pid: int) -> Optional[_Question]:
        """Return a question to a process that can answer; None if it cannot."""
        if process_state(pid) not in ("runs", "sleeps"):
            return None
        try:
            memory = next(open_memfds(pid, _NAME), None)
        except PermissionError:  # it is another user's
            return None
        if memory is None:
            return None
        owner, _, pipe = os.pread(memory, 64, 0).partition(b"\n")[0].partition(b" ")
        if owner == b"%d" % pid or not _in_this_namespace(pid):
            return cls(pid, memory, int(pipe))
        os.close(memory)  # a fork of it, in which no thread answers
        return None

    def ask(self) -> bool:
        """Ask the thread; return whether that was possible."""
        try:
            pipe = os.open(f"/proc/{self.pid}/fd/{self._pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # it has ended
            return False
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it is full of questions, or the process has ended
            os.write(pipe, b"?")
        os.close(pipe)
        return True

    def send_signal(self) -> bool:
        """Ask the main thread; return whether that was possible."""
        if process_state(self.pid) not in ("runs", "sleeps") or not _catches(self.pid):
            return False
        try:
            os.kill(self.pid, STACKS_SIGNAL)
        except (ProcessLookupError, PermissionError):
            return False
        self._signalled = True
        return True

    def is_answered(self) -> bool:
        """Return whether the answer is complete: its end is there, or the handler's grows no more."""
        size, before = os.fstat(self.memory).st_size, self._size
        self._size = size
        if size <= self._begin:
            return False
        ended = os.pread(self.memory, len(_END), size - len(_END)) == _END
        return ended or (self._signalled and size == before)

    def text(self) -> str:
        """Return what was answered until now."""
        return os.pread(self.memory, _MOST, self._begin).replace(_END, b"").decode(errors="replace")


def _await(questions: List[_Question], until: float) -> List[_Question]:
    """Wait for answers; return the questions that have none."""
    late = questions
    while late and clock.now() < until:
        time.sleep(0.005)
        late = [question for question in late if not question.is_answered()]
    return late


def _in_this_namespace(pid: int) -> bool:
    """Return whether a process has the same numbers for processes as this one."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return True


def _catches(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
    except (FileNotFoundError, ProcessLookupError, StopIteration):
        return False
    return bool(caught >> (STACKS_SIGNAL - 1) & 1)
