"""Splitting a group: with two all-gathers, its ranks find out which of them are in which part."""

from __future__ import annotations

import errno
from typing import Any, Callable, List, Mapping, Optional, Sequence

from ddl import _core
from ddl._comm.group import Group
from ddl.errors import Error, InvalidArgument, ResourceError
from ddl.plan.ir import Collective
from ddl.tuning.select import Lines

__all__ = ["part_of"]


def part_of(
    group: Group,
    allgather: Callable[[Any], List[Any]],
    color: Optional[int],
    key: Optional[int],
    tuned: Optional[Mapping[Collective, Lines]],
    racks: Sequence[Sequence[int]],
    deterministic: bool,
    wire: Optional[str],
) -> Optional[Group]:
    """Return this rank's part of ``group``: see ``Communicator.split``; ``allgather`` is that of objects on it."""
    group.job.dropped.close_unused()
    place = (None if color is None else int(color), group.rank if key is None else int(key))
    rows = allgather((*place, group.next_number, bool(deterministic), group.closed(group.ranks)))
    members, number = group.children(rows)
    core: Optional[_core.Communicator] = None
    failed: Optional[Error] = None
    try:
        if members is not None:
            core = Group.make_core(group.job, members.index(group.rank), len(members))
            if members[0] == group.rank and number is None:
                number = group.fresh_number()
    except Error as error:  # of this rank alone: the others hear of it below, where they wait for it
        failed = error
    board = None if core is None else core.board_offset
    answers = allgather((board, number, None if failed is None else str(failed)))
    if failed is not None:
        raise failed
    if members is None or core is None:
        return None
    for rank in members:
        if answers[rank][2] is not None:
            raise ResourceError(errno.EAGAIN, f"{group.who}: split: rank {rank} could not: {answers[rank][2]}")
    asking = [rank for rank in members if rows[rank][3]]
    if asking and len(asking) < len(members):
        raise InvalidArgument(
            f"split: of color {color}, ranks {asking} asked for deterministic=True and the others of {members} did "
            "not; pass the same on all of them"
        )
    boards, number = [answers[rank][0] for rank in members], answers[members[0]][1]
    return group.child(members, number, core, boards, tuned, racks, deterministic, wire)
