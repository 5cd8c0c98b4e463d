"""Barriers with their own timeout: ``monitored_barrier``, which names the ranks that do not come, and ``barrier``.

torch's function ``monitored_barrier`` asks for gloo by name and refuses any other backend. A backend cannot tell it
that it has such a barrier, too. So it is replaced by a function that handles groups of DDL and calls torch's for all
others.
"""

from __future__ import annotations

import functools
import math
from datetime import timedelta
from typing import Any, Iterable, NoReturn, Optional, Tuple, Type, Union

import torch
import torch.distributed as dist

from ddl import CollectiveTimeout, Communicator, WaitTimeout, clock
from ddl.adapter.calls import calls_of
from ddl.adapter.operations import Waitable
from ddl_torch.c10d.messages import Messages
from ddl_torch.c10d.verbs import C10dVerbs

__all__ = ["barrier_within", "extend_torch", "monitored_barrier", "own_timeout"]

_TAG = -1  # of the messages of a barrier; a program's tags are not negative
_VERDICT = 2.0  # seconds that rank 0's word may take


def monitored_barrier(communicator: Communicator, messages: Messages, seconds: float, every: bool) -> None:
    """Return when all ranks have called it; break the group with ``CollectiveTimeout`` after ``seconds``.

    The error, on all ranks, names the first rank that has not come, or all of them (``every``). When rank 0 comes it
    tells the others how long it waits, and from then on it alone judges: it may have come later than they.
    """
    until = clock.now() + seconds
    others = range(1, communicator.size)
    if communicator.rank == 0:
        _tell(others, messages, seconds)
        late = []
        for rank, (_, arrival) in [(rank, _expect(rank, messages)) for rank in others]:
            if not _came(arrival, until):
                late.append(rank)
                if not every:
                    break
        if late:
            names = ", ".join(map(str, late))
            _break(communicator, late[0], f"no sign of rank {names} for {seconds:g} s")
        _tell(others, messages, seconds)
        _all_have_been_told(communicator)
        return
    _tell([0], messages, seconds)
    word, arrival = _expect(0, messages)
    if not _came(arrival, until):
        _break(communicator, 0, f"no sign of rank 0 for {seconds:g} s")
    patience = word.item()
    _, verdict = _expect(0, messages)
    if not _came(verdict, clock.now() + patience + _VERDICT):
        _break(communicator, 0, f"rank 0 has come, and not said within {patience:g} s whether all have")
    _all_have_been_told(communicator)


def _all_have_been_told(communicator: Communicator) -> None:
    """Return when every rank knows that all have come, or raise what another one has broken the group with meanwhile.

    Rank 0 may leave next, and its messages that are under way would be lost then.
    """
    communicator.barrier()


def _tell(ranks: Iterable[int], messages: Messages, seconds: float) -> None:
    for rank in ranks:
        messages.send(torch.tensor([seconds], dtype=torch.float64), rank, _TAG)


def _expect(rank: int, messages: Messages) -> Tuple[torch.Tensor, Waitable]:
    """Return where the seconds that ``rank`` tells will be, and what to wait for until they are there."""
    seconds = torch.empty(1, dtype=torch.float64)
    receive, _ = messages.recv(seconds, rank, _TAG, timeout=math.inf)  # a barrier's time may be longer than a verb's
    assert receive is not None
    return seconds, receive


def _came(receive: Waitable, until: float) -> bool:
    try:
        receive.wait(max(until - clock.now(), 0.0))
    except WaitTimeout:
        return False
    return True


def _break(communicator: Communicator, rank: int, text: str) -> NoReturn:
    """Let all ranks raise the error, here at once."""
    calls_of(communicator).fail(CollectiveTimeout, rank, f"monitored_barrier: {text}")


def own_timeout(opts: Any) -> Optional[float]:
    """Return the seconds that a verb's options give it; None if they leave that to the group."""
    seconds: float = -1.0 if opts is None else opts.timeout.total_seconds()
    return seconds if seconds >= 0 else None


def barrier_within(communicator: Communicator, verbs: C10dVerbs, seconds: float) -> None:
    """Return when all ranks have called it; break the group with ``CollectiveTimeout`` after ``seconds``."""
    work, _ = verbs.barrier()
    assert work is not None
    try:
        work.wait(seconds)
    except WaitTimeout:
        # torch's own tests look for this form.
        text = f"barrier: Timed out waiting {seconds * 1000:g}ms for all ranks to call it; give it a longer timeout"
        calls_of(communicator).fail(CollectiveTimeout, -1, text)


def extend_torch(served: Type[Any]) -> None:
    """Let ``torch.distributed.monitored_barrier`` serve groups of the class ``served``, too."""
    original = dist.monitored_barrier

    @functools.wraps(original)
    def extended(
        group: Any = None, timeout: Union[timedelta, float, None] = None, wait_all_ranks: bool = False
    ) -> None:
        target = dist.group.WORLD if group is None else group
        call = target.monitored_barrier if isinstance(target, served) else functools.partial(original, group)
        call(timeout, wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = extended
