"""What a rank does, or has done, that makes others wait: the kind of a finding, its sentence and its advice."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

from ddl.blame.finding import Finding
from ddl.blame.roots import WaitGraph
from ddl.blame.stacks import in_user_code, main_stack, user_frame
from ddl.blame.view import JobView
from ddl.blame.waits import LOST, NO_DUMP, WaitEdge
from ddl.records.layout import CommunicatorRecord
from ddl.text.signals import signal_name
from ddl.text.units import counted, duration

__all__ = ["cause_of", "is_own_end", "wait_line"]

_SHOWN = 3  # waits, and frames of a stack
#: What the errors of others say of a rank that has gone: ddl/store/verdict.py and csrc/engine/lane_watch.cc.
_GOODBYE = re.compile(r"it has shut down")
_ENDED = re.compile(r"its process (?:has )?ended")
_WHY_LOST = re.compile(r".* lost rank \d+ \([^)]*\): ", re.DOTALL)  # what a wait's line has already said
_FULL_DISK = re.compile(r"ENOSPC|No space left on device")
#: Functions of the kernel in which a process sleeps that sleeps on purpose, or waits for another thread of its own.
_SLEEPS = re.compile(r"nanosleep|futex|sigsuspend|sigtimedwait|^pause")
_PIPES_AND_FILES = (
    (re.compile(r"pipe"), "a pipe"),
    (re.compile(r"skb|sk_wait|tcp|unix_|inet_|sock"), "a socket"),
    (re.compile(r"poll|select"), "one of several files or sockets"),
    (re.compile(r"do_wait|wait4|waitid"), "a child process"),
    (re.compile(r"nfs|rpc|lustre|ll_|ceph|fuse"), "a file of a network file system"),
    (re.compile(r"folio|page|io_schedule|blk|bio|ext4|xfs|btrfs|fsync"), "a disk"),
    (re.compile(r"tty"), "a terminal"),
)


class _Cause(NamedTuple):
    kind: str
    sentence: str
    advice: str
    evidence: Sequence[str] = ()


def cause_of(view: JobView, graph: WaitGraph, number: int) -> Finding:
    """Return the finding about a process that others wait for, or that has ended by itself."""
    cause = _of_lateness(view, graph, number) or _of_end(view, number) or _of_departure(view, graph, number)
    if cause is None:
        cause = _of_life(view, graph, number) if number in view.dumps else _without_dump(view.name(number))
    evidence = [*cause.evidence, *_waits_lines(view, graph, number), *_own_lines(view, graph, number)]
    return Finding(cause.kind, (view.rank(number),), view.host(number), cause.sentence, tuple(evidence), cause.advice)


def is_own_end(view: JobView, number: int) -> bool:
    """Return whether a process has failed by itself: no failure of DDL's came before, and nobody told it to end."""
    code = view.exit(number)
    return code is not None and code != 0 and not view.failure(number)


def wait_line(view: JobView, edge: WaitEdge) -> str:
    """Return ``rank 0 waits for rank 2 in allreduce #41 (…) for 5.0 s``."""
    who, whom = f"rank {view.rank(edge.waiter)}", f"rank {view.rank(edge.awaited)}"
    if edge.why == LOST:
        call = f" in {edge.call.numbered}" if edge.call is not None else ""
        return f"{who} lost {whom}{call}: {_WHY_LOST.sub('', edge.communicator.failure)}"
    assert edge.call is not None
    where = "" if edge.communicator.title == "all ranks" else f" of {edge.communicator.title}"
    failed = edge.call.state == "failed"
    verb, how_long = ("gave up waiting", "after") if failed else ("waits", "for")
    return f"{who} {verb} for {whom} in {edge.call.numbered}{where} {how_long} {duration(edge.seconds)}"


def _of_lateness(view: JobView, graph: WaitGraph, number: int) -> Optional[_Cause]:
    """Say that others gave up waiting for a process, which ended because of that."""
    gave_up = [edge for edge in graph.waits_for(number) if edge.sure and edge.communicator.failure]
    if not gave_up or not view.failure(number) or view.exit(number) in (None, 0):
        return None
    call = gave_up[0].call
    return _Cause(
        "never called",
        f"{view.name(number)} came too late" + (f" to {call.numbered}: others gave up" if call is not None else ""),
        "see what it did before that: input, or a checkpoint; where that may take so long, raise DDL_TIMEOUT",
    )


def _of_end(view: JobView, number: int) -> Optional[_Cause]:
    """Say how a process has ended, if its exit is known, and it was not told to end."""
    code, name = view.exit(number), view.name(number)
    dump = view.dumps.get(number)
    killed_by_kernel = dump.process.out_of_memory if dump is not None else None
    if killed_by_kernel:
        return _Cause(
            "out of memory",
            f"the kernel killed {name}, because there was no memory left",
            "use a smaller batch or fewer ranks on this host, or give its container more memory",
            [f"the kernel: {killed_by_kernel}"],
        )
    if code is None:
        return None
    tail = list(view.last_lines(number))[-_SHOWN:]
    last = [f"its last lines: {tail[0]}", *tail[1:]] if tail else []
    if code < 0:
        signal = signal_name(-code)
        what_to_do = _SIGNAL_ADVICE.get(signal, "look at its last lines on stderr, and at who may send signals there")
        if signal == "SIGKILL" and killed_by_kernel == "":
            what_to_do = (
                "the kernel had memory left: ask who killed it, for example a batch system at a limit, or a user"
            )
        return _Cause("dead", f"{name} was killed by signal {-code} ({signal})", what_to_do, last)
    if code > 0:
        full = next(filter(_FULL_DISK.search, view.last_lines(number)), None)
        if full is not None:
            return _Cause(
                "full disk",
                f"{name} could not write: there is no space left",
                "free space there, or write elsewhere",
                [f"its last lines: {full}"],
            )
        return _Cause("dead", f"{name} exited with status {code}", "read its last lines on stderr", last)
    return _Cause(
        "never called",
        f"{name} has ended its program, while others still wait for it",
        "let all ranks do the same number of steps: see join in docs/torch.md, or drop the last uneven batches",
    )


_SIGNAL_ADVICE = {
    "SIGKILL": "look for the kernel's words about memory ('dmesg', as root), and at limits of the batch system",
    "SIGSEGV": "native code failed: run the rank with 'python -X faulthandler', and look at the stack",
    "SIGBUS": "a mapped file became shorter, or /dev/shm is full: look at 'df /dev/shm'",
    "SIGABRT": "native code gave up: read its last lines on stderr",
    "SIGTERM": "somebody asked it to end: a batch system at its time limit, or a user",
}


def _of_departure(view: JobView, graph: WaitGraph, number: int) -> Optional[_Cause]:
    """Say that a process has gone, if only that is known. What the others have seen may be newer than its dump."""
    name, dump = view.name(number), view.dumps.get(number)
    lost = [edge.communicator.failure for edge in graph.waits_for(number) if edge.why == LOST]
    gone = dump is not None and dump.process.state == "has ended" and not dump.stopped
    closed = any(record.closed is not None and not record.failure for record in view.communicators(number))
    if any(_GOODBYE.search(failure) for failure in lost) or (gone and closed):
        return _left(name)
    return _ended(name) if gone or any(_ENDED.search(failure) for failure in lost) else None


def _left(name: str) -> _Cause:
    return _Cause(
        "never called",
        f"{name} has left the job, while others still wait for it",
        "let all ranks do the same number of steps; if its program failed, read its last lines on stderr",
    )


def _ended(name: str) -> _Cause:
    return _Cause("dead", f"the process of {name} has ended; it is not known how", "read its last lines on stderr")


def _without_dump(name: str) -> _Cause:
    return _Cause(
        "unknown",
        f"others wait for {name}, of which there is no dump",
        "run 'ddl dump --out' on its host, too; if the host does not answer, it is gone",
    )


def _of_life(view: JobView, graph: WaitGraph, number: int) -> _Cause:
    """Say what a process does that is there, and for which others wait."""
    name, dump = view.name(number), view.dumps[number]
    state, where = dump.process.state, dump.process.waits_in
    waiting = graph.waits_for(number)
    stack = main_stack(dump.stacks)
    user = in_user_code(dump.stacks)
    not_called = _not_called(view, waiting)
    if state.startswith("is stopped"):
        debugger = "debugger" in state
        return _Cause(
            "stopped",
            f"{name} {state}" + (f", and {not_called}" if waiting else ""),
            "let the debugger go on" if debugger else f"let it go on: kill -CONT {dump.process.pid}",
        )
    if any(edge.why == LOST for edge in waiting):
        return _Cause(
            "unknown",
            f"others have lost {name}, but its process {state}",
            "look at the network between these hosts: ddl doctor",
        )
    if state == "waits in the kernel for a device" or (where and user and not _SLEEPS.search(where)):
        what = next((words for functions, words in _PIPES_AND_FILES if functions.search(where)), "a device")
        detail = f"for {what}, in {where}()" if where else "for a device"
        return _Cause(
            "stuck in a system call",
            f"{name} waits in the kernel {detail}, and {not_called}",
            "look at what it reads or writes there: a disk, a network file system, a pipe",
            _stack_lines(dump.stacks),
        )
    if graph.waits_for(number) and not any(edge.sure for edge in waiting):
        return _Cause(
            "unknown",
            f"{name} {state}, and is in the operation in which others wait for it",
            "dump again: if nothing has moved, look at its host and at the network with ddl doctor",
            _stack_lines(dump.stacks),
        )
    if stack and not user:
        return _Cause(
            "unknown",
            f"{name} is in a function of DDL's that is not recorded, and {not_called}",
            "look at what the other ranks do at this line of the program",
            _stack_lines(dump.stacks),
        )
    frame = user_frame(dump.stacks)
    doing = {"runs": "computes", "sleeps": "sleeps or waits", "has ended": "was told to end while it was"}.get(
        state, state
    )
    return _Cause(
        "stuck in user code",
        f"{name} {doing} outside of DDL" + (f": {frame}" if frame else "") + f"; {not_called}",
        "look at this line: a lock, a queue, a file, or work that the others do not have"
        if frame
        else f"see where it is: py-spy dump --pid {dump.process.pid}",
        _stack_lines(dump.stacks),
    )


def _not_called(view: JobView, waiting: Sequence[WaitEdge]) -> str:
    """Return ``3 ranks wait for it in allreduce #41 (…)``."""
    if not waiting:
        return "nobody waits for it yet"
    call = waiting[0].call
    where = f" in {call.numbered}" if call is not None else ""
    ranks = len({edge.waiter for edge in waiting})
    return f"{counted(ranks, 'rank')} {'waits' if ranks == 1 else 'wait'} for it{where}"


def _waits_lines(view: JobView, graph: WaitGraph, number: int) -> List[str]:
    waiting = graph.waits_for(number)
    lines = [wait_line(view, edge) for edge in waiting[:_SHOWN]]
    direct = {edge.waiter for edge in waiting}
    more = len(direct - {edge.waiter for edge in waiting[:_SHOWN]})
    if more:
        lines.append(f"{counted(more, 'more rank')} {'waits' if more == 1 else 'wait'} for it")
    others = len(graph.all_behind([number]) - direct)
    if others:
        lines.append(f"{counted(others, 'rank')} {'waits' if others == 1 else 'wait'} for those")
    if any(edge.why == NO_DUMP for edge in waiting):
        lines.append("there is no dump of it")
    return lines


def _own_lines(view: JobView, graph: WaitGraph, number: int) -> List[str]:
    """Say what a process itself has called last, where others wait for it."""
    lines = []
    told = set()
    for edge in graph.waits_for(number):
        record = view.record(number, edge.communicator)
        if record is None or record.number in told or not edge.sure:
            continue
        told.add(record.number)
        lines.append(f"rank {view.rank(number)} {_last_call(record)}")
    return lines[:_SHOWN]


def _last_call(record: CommunicatorRecord) -> str:
    where = "" if record.title == "all ranks" else f" of {record.title}"
    if not record.submitted:
        return f"has not called any collective{where}"
    last = record.collectives[-1] if record.collectives else None
    if last is None or last.number != record.submitted:
        return f"has called #{record.submitted} as its last collective{where}"
    return f"has called {last.numbered}{where} as its last collective, which has {last.state}"


def _stack_lines(stacks: str) -> Tuple[str, ...]:
    """Return the innermost frames, and the innermost frame of the user's if it is not among them."""
    frames = main_stack(stacks)[:_SHOWN]
    user = user_frame(stacks)
    if user is not None and user not in frames:
        frames = [*frames[:-1], user]
    return tuple(f"at {frame}" for frame in frames)
