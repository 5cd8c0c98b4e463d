"""Members give their state to a process that joins while they go on: state_source.py and state_follower.py."""

from __future__ import annotations

import functools
import socket
import threading
import time
from typing import Any, Callable, Iterator, List, Tuple

import numpy as np
import pytest
from proving import prove_as_server

from ddl import _core, clock
from ddl._comm import state_follower
from ddl._comm.state_follower import StateFollower
from ddl._comm.state_source import StateSource
from ddl._comm.state_stripes import Piece, digests, stripe
from ddl.bootstrap.plain_end import plain_end
from ddl.errors import Error
from ddl.net.auth import prove_as_client

SIZE = 100_003  # bytes, which no number of members divides
PATIENCE = 60.0


class Trainer:
    """A member that trains: in each step, it adds the number of the step to all of its state."""

    def __init__(self, encrypts: bool) -> None:
        self.encrypts = encrypts
        self.state = np.arange(SIZE, dtype=np.uint8)
        self.source = StateSource(lambda: SIZE, PATIENCE)
        self.finished = 0
        self.threads: List[threading.Thread] = []

    def boundary(self) -> None:
        self.source.step_ended(self.finished, lambda: ({"step": self.finished}, self._pieces(self.state)))

    def step(self) -> None:
        change = np.full(SIZE, (self.finished + 1) % 256, np.uint8)
        self.source.step_begins(self.finished + 1, lambda: ({"step": self.finished + 1}, self._pieces(change)))
        self.state = self.state + change
        self.finished += 1

    @staticmethod
    def _pieces(data: np.ndarray) -> List[Piece]:
        cuts = (0, 60_000, 60_000, SIZE)
        return [Piece(stop - start, lambda a=start, b=stop: data[a:b]) for start, stop in zip(cuts, cuts[1:])]

    def connect(self) -> socket.socket:
        own, theirs = socket.socketpair()
        about = (b"a secret of the job", clock.now() + PATIENCE)

        def serve() -> None:
            with plain_end(prove_as_server(own, *about, read_ahead=True)) as plain:
                try:
                    self.source.serve(plain)
                except (OSError, Error):
                    return  # the newcomer has hung up before it asked for anything

        self.threads.append(threading.Thread(target=serve, daemon=True))
        self.threads[-1].start()
        return plain_end(prove_as_client(theirs, *about, encrypt=self.encrypts, read_ahead=True))


class Newcomer:
    """What follows trainers."""

    def __init__(self, connect: Callable[[], List[socket.socket]]) -> None:
        self.state = np.empty(0, np.uint8)
        self.steps: List[int] = []
        self.follower = StateFollower(connect, self._load, self._update, PATIENCE)

    def _load(self, about: Any, data: np.ndarray) -> None:
        self.state, self.steps = data.copy(), [about["step"]]

    def _update(self, about: Any, data: np.ndarray) -> None:
        self.state = self.state + data
        self.steps.append(about["step"])


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def trainers(request: pytest.FixtureRequest) -> Iterator[List[Trainer]]:
    _core.load_openssl("")
    members = [Trainer(request.param) for _ in range(3)]
    yield members
    for member in members:
        member.source.close()
        for thread in member.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def wait_until_asked(members: List[Trainer]) -> None:
    """Take no step before all are asked for one that is still to come."""
    deadline = time.monotonic() + PATIENCE
    while not all(member.source.is_asked for member in members):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def train(members: List[Trainer], until: Callable[[], bool], pause: float = 0.02) -> None:
    """Let all take steps until it is enough. A newcomer has some of them to ask for the one after."""
    deadline = time.monotonic() + 2 * PATIENCE
    while not until():
        assert time.monotonic() < deadline
        for member in members:
            member.boundary()
        for member in members:
            member.step()
        time.sleep(pause)


def following(newcomer: Newcomer) -> Tuple[threading.Thread, List[bool]]:
    answers: List[bool] = []
    thread = threading.Thread(target=lambda: answers.append(newcomer.follower.catch_up()), daemon=True)
    thread.start()
    return thread, answers


def joined(newcomer: Newcomer, members: List[Trainer], answers: List[bool]) -> None:
    """It has the state of all, and has left out no step."""
    assert answers == [True] and newcomer.follower.complete(members[0].finished, PATIENCE)
    assert newcomer.steps == list(range(newcomer.steps[0], members[0].finished + 1))
    assert (newcomer.state == members[0].state).all()
    newcomer.follower.close()


def test_a_newcomer_gets_the_state_while_others_go_on(trainers: List[Trainer]) -> None:
    newcomer = Newcomer(lambda: [member.connect() for member in trainers])
    thread, answers = following(newcomer)
    train(trainers, lambda: bool(answers))
    thread.join()
    for member in trainers:  # they take some more, before all stop
        member.boundary()
        member.step()
    joined(newcomer, trainers, answers)


def test_steps_that_take_long(trainers: List[Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    """A member looks meanwhile whether the newcomer is still there, and goes on to send."""
    monkeypatch.setattr("ddl._comm.state_source._LOOK", 0.02)
    asked = []

    def connect() -> List[socket.socket]:
        asked.append(len(asked))
        return [member.connect() for member in trainers]

    newcomer = Newcomer(connect)
    _, answers = following(newcomer)
    wait_until_asked(trainers)
    train(trainers, lambda: bool(answers), 0.15)
    assert asked == [0], "the first snapshot that was asked for did not come"
    joined(newcomer, trainers, answers)


def test_another_snapshot_is_asked_for_where_a_member_is_lost(trainers: List[Trainer]) -> None:
    living = list(trainers)
    newcomer = Newcomer(lambda: [member.connect() for member in living])
    _, answers = following(newcomer)
    train(trainers, lambda: trainers[1].source.is_asked)
    living.remove(trainers[1])
    trainers[1].source.close()
    train(living, lambda: bool(answers))
    joined(newcomer, living, answers)


def test_a_member_that_is_a_step_behind_begins_anew(trainers: List[Trainer]) -> None:
    """It was given a step by another one, and cannot tell what it was."""
    newcomer = Newcomer(lambda: [member.connect() for member in trainers])
    _, answers = following(newcomer)
    wait_until_asked(trainers)
    train(trainers, lambda: bool(answers))
    trainers[2].source.cannot_tell("another rank has given it the step")
    for member in trainers:
        member.boundary()
        member.step()
    assert not newcomer.follower.complete(trainers[0].finished, PATIENCE)
    newcomer.follower.close()


def test_a_newcomer_gives_up_where_ranks_change(trainers: List[Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_follower, "_CHANGING", 0.01)
    trainers[0].source.is_changing = True
    newcomer = Newcomer(lambda: [member.connect() for member in trainers])
    assert not newcomer.follower.catch_up() and not newcomer.follower.follows
    assert not newcomer.follower.complete(0, 0.1)


def test_steps_that_come_too_fast_end_the_stream(trainers: List[Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a newcomer that does not read is bounded."""
    monkeypatch.setattr("ddl._comm.state_source._AHEAD", 0)
    source = trainers[0].source
    sock = trainers[0].connect()
    state_follower.send_frame(sock, {"part": 0, "parts": 1})
    finished = state_follower.recv_frame(sock, time.monotonic() + PATIENCE)["finished"]
    state_follower.send_frame(sock, {"step": finished + 1})
    wait_until_asked(trainers[:1])
    for _ in range(400):
        train(trainers[:1], lambda: bool(source._streams[0].over) or trainers[0].finished > 300, 0)
    assert "faster" in source._streams[0].over
    sock.close()


def test_what_cannot_be_read_ends_the_stream_and_not_the_training(trainers: List[Trainer]) -> None:
    def unreadable() -> Any:
        raise RuntimeError("sparse tensors do not have strides")

    newcomer = Newcomer(lambda: [member.connect() for member in trainers])
    _, answers = following(newcomer)
    wait_until_asked(trainers)
    train(trainers, lambda: bool(answers))
    for member in trainers:
        member.source.step_begins(member.finished + 1, unreadable)
    assert not newcomer.follower.complete(trainers[0].finished + 1, PATIENCE)
    newcomer.follower.close()


@pytest.mark.parametrize("asked", [{}, {"part": 2, "parts": 2}, {"part": -1, "parts": 2}, {"part": 0, "parts": "2"}])
def test_a_question_that_makes_no_sense(asked: Any) -> None:
    own, theirs = socket.socketpair()
    with own, theirs:
        state_follower.send_frame(theirs, asked)
        with pytest.raises(Error, match="makes no sense"):
            StateSource(lambda: SIZE, PATIENCE).serve(own)


def test_digests_tell_one_word_from_another() -> None:
    data = np.random.default_rng(1).integers(0, 255, SIZE).astype(np.uint8)
    first = digests([Piece(SIZE, lambda: data)], range(3), 3)
    assert first == digests([Piece(SIZE, lambda: data.copy())], range(3), 3)
    start, stop = stripe(SIZE, 1, 3)
    for at in (start, start + 1000, stop - 1):
        other = data.copy()
        other[at] ^= 1
        second = digests([Piece(SIZE, functools.partial(np.copy, other))], range(3), 3)
        assert [a == b for a, b in zip(first, second)] == [True, False, True]
