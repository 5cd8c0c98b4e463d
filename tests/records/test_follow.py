"""Each operation is told once, and what was overwritten is counted; the news survive a connection."""

from __future__ import annotations

import json
import os
from typing import List

import numpy as np
import pytest
import ranks

from ddl.errors import ProtocolError
from ddl.records.follow import CallKind, RankNews, RecordFollower, TracedCall, news_message, news_pieces, parse_news
from ddl.records.memory import ProcessMemory


def numbers(news: List[RankNews], messages: bool = False) -> List[int]:
    return [call.number for told in news if told.messages == messages for call in told.calls]


def following_oneself():
    import ddl
    from ddl import _core
    from ddl.adapter.step_record import note_step

    world, rank = ddl.world(), ddl.rank()
    follower = RecordFollower(ProcessMemory(os.getpid(), os.dup(_core.arena_fd())))
    world.allreduce_(np.zeros(1))
    first = numbers(follower.news(0.0))[-1]
    assert follower.news(0.0) == []
    work = world.allreduce_async_(np.zeros(3, np.float32), name="bucket.1")
    work.wait()
    note_step()
    operations, steps = follower.news(7.0)
    (call,) = operations.calls
    assert (operations.number, operations.rank, operations.taken, operations.ranks) == (rank, rank, 7.0, (0, 1))
    assert (call.number, call.kind.label, call.kind.size, call.kind.peer) == (first + 1, "bucket.1", 12, -1)
    assert call.submitted is not None and call.state == "ended"
    assert (steps.communicator, steps.first_step, len(steps.step_ends), steps.step_begin) == (-1, 1, 1, None)
    for _ in range(100):
        note_step()
    (steps,) = follower.news(0.0)
    assert steps.missing == 100 - len(steps.step_ends) and steps.first_step == 102 - len(steps.step_ends)
    assert steps.step_begin is None  # the step before is one that nobody has read

    step = world.prepare_allreduce(np.zeros(1))
    for _ in range(3000):
        step()
    (many,) = follower.news(0.0)
    assert many.missing == 3000 - 2048
    assert numbers([many]) == list(range(first + 2 + 952, first + 2 + 3000)) and follower.fill == 1

    if rank == 0:
        world.send(np.zeros(5), 1)
        late = world.recv_async(np.zeros(5), 1)
        assert numbers(follower.news(0.0), messages=True) == [1]
        assert numbers(follower.news(0.0, last=True), messages=True) == [2]  # it has not ended
        world.send(np.zeros(5), 1)
        late.wait()
    else:
        world.recv(np.zeros(5), 0)
        (message,) = follower.news(0.0)
        assert message.messages and message.calls[0].kind.peer == 0
        world.recv(np.zeros(5), 0)
        world.send(np.zeros(5), 0)


@pytest.mark.processes
def test_a_rank_is_followed() -> None:
    ranks.run(2, following_oneself)


def parted():
    import ddl
    from ddl import _core

    part = ddl.world().split(ddl.rank() // 2)
    part.allreduce_(np.zeros(1))
    news = RecordFollower(ProcessMemory(os.getpid(), os.dup(_core.arena_fd()))).news(0.0)
    (of_part,) = [told for told in news if told.ranks == ((0, 1) if ddl.rank() < 2 else (2, 3))]
    assert of_part.rank == ddl.rank() and of_part.place == ddl.rank() % 2
    pieces = news_pieces(news)
    assert [told for piece in pieces for told in piece] == news
    assert [parse_news(json.loads(json.dumps(news_message(told)))) for told in news] == news


@pytest.mark.processes
def test_parts_of_all_ranks() -> None:
    ranks.run(4, parted)


def test_pieces_are_short_and_lose_nothing() -> None:
    kind = CallKind("allreduce", "allreduce(1 x int8, sum)", "", "small", "direct", 1, -1)
    calls = tuple(TracedCall(number, kind, None, 1.0, 2.0, "ended", None) for number in range(2500))
    news = RankNews(0, 0, "a", 3.0, 0, (0, 1), missing=4, calls=calls)
    pieces = news_pieces([news, news])
    assert sum(told.missing for piece in pieces for told in piece) == 8
    assert all(len(json.dumps([news_message(told) for told in piece])) < 1 << 19 for piece in pieces)
    assert [call for piece in pieces for told in piece for call in told.calls] == [*calls, *calls]


@pytest.mark.parametrize("message", [{}, {"kinds": 3}, {"kinds": [], "calls": [[1, 7]], "ranks": [], "step_ends": []}])
def test_what_is_no_news(message) -> None:
    with pytest.raises(ProtocolError, match="this is no news of a rank"):
        parse_news(message)
