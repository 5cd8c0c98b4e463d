"""Conversations over ways that fail and come: everything arrives, once and in order, while one way lives."""

from __future__ import annotations

import collections
import json
from typing import Deque, Dict, List, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.errors import ProtocolError
from ddl.store.session import Session, Way


class Side:
    """A session, what it was told to send, and what came out of it."""

    def __init__(self) -> None:
        self.session = Session()
        self.said: List[int] = []
        self.heard: List[int] = []


class Line:
    """A way: for each direction, what is under way on it, and what its receiver has counted."""

    def __init__(self, sides: Tuple[Side, Side]) -> None:
        got = [side.session.got for side in sides]
        self.flying: List[Deque[bytes]] = [collections.deque(sides[0].session.lacking(got[1]))]
        self.flying.append(collections.deque(sides[1].session.lacking(got[0])))
        self.counts = [Way(), Way()]
        for count, number in zip(self.counts, got):
            count.heard = number


class Conversation:
    def __init__(self) -> None:
        self.sides = (Side(), Side())
        self.lines = [Line(self.sides)]

    def say(self, who: int) -> None:
        side = self.sides[who]
        side.said.append(len(side.said))
        frame = json.dumps({"type": "out", "number": side.said[-1]}).encode()
        side.session.keep(frame)
        self._send(who, frame)

    def deliver(self, line: Line, frames: int, to: int) -> None:
        side = self.sides[to]
        flying = line.flying[1 - to]
        for _ in range(min(frames, len(flying))):
            news = side.session.take(line.counts[to], json.loads(flying.popleft()))
            if news is not None:
                side.heard.append(news["number"])
            confirmation = side.session.confirmation()
            if confirmation is not None:
                self._send(to, json.dumps(confirmation).encode())

    def _send(self, who: int, frame: bytes) -> None:
        for line in self.lines:
            line.flying[who].append(frame)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_everything_arrives_once_and_in_order(data: st.DataObject) -> None:
    talk = Conversation()
    for _ in range(data.draw(st.integers(1, 60))):
        what = data.draw(st.sampled_from(["say", "deliver", "lose", "open"]))
        line = talk.lines[data.draw(st.integers(0, len(talk.lines) - 1))]
        if what == "say":
            who = data.draw(st.integers(0, 1))
            for _ in range(data.draw(st.integers(1, 40))):
                talk.say(who)
        elif what == "deliver":
            talk.deliver(line, data.draw(st.integers(1, 60)), data.draw(st.integers(0, 1)))
        elif what == "lose" and len(talk.lines) > 1:
            talk.lines.remove(line)
        elif what == "open" and len(talk.lines) < 4:
            talk.lines.append(Line(talk.sides))
    # The line that has lived longest: the younger ones depend on nothing that it does not carry, too.
    del talk.lines[1:]
    for _ in range(16):  # a confirmation may have been lost with its way; this many messages make a new one
        talk.say(0)
        talk.say(1)
    for to in (0, 1) * 2:
        talk.deliver(talk.lines[0], 10_000, to)
    for side, other in (talk.sides, talk.sides[::-1]):
        assert other.heard == side.said
        assert len(side.session._kept) < 16


@pytest.mark.parametrize("number", [-1, 4, "1", True, None])
def test_an_impossible_confirmation_is_refused(number: object) -> None:
    session = Session()
    for _ in range(3):
        session.keep(b"")
    message: Dict[str, object] = {"got": number}
    with pytest.raises(ProtocolError, match="possible"):
        session.take(Way(), message)
    with pytest.raises(ProtocolError, match="possible"):
        session.lacking(number)


def test_what_is_confirmed_cannot_be_asked_for() -> None:
    session = Session()
    for letter in b"abcd":
        session.keep(bytes([letter]))
    assert session.take(Way(), {"got": 2}) is None
    assert session.take(Way(), {"got": 1}) is None  # over a slower way
    assert session.lacking(2) == [b"c", b"d"]
    with pytest.raises(ProtocolError, match="2 to 4 are possible"):
        session.lacking(1)
