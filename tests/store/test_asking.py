"""A rank asks the store over the connection by which the store knows that it lives."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterator, List

import pytest

from ddl.errors import InvalidArgument, InvalidState, PeerLost, RendezvousError
from ddl.store.messages import Message
from ddl.store.server import StoreServer
from ddl.store.store import StoreClient
from ddl.store.watch import WatchClient


class Rank:
    """A watch connection and the thread that receives on it, as the agent's does."""

    def __init__(self, watch: WatchClient) -> None:
        self.watch = watch
        self.heard: List[Message] = []
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def _receive(self) -> None:
        while True:
            message = self.watch.receive()
            if message is None:
                return
            if message:
                self.heard.append(message)
            else:
                time.sleep(0.001)

    def end(self) -> None:
        self.watch.close()
        self._thread.join(100)


@pytest.fixture
def come(watch: Callable[[int], WatchClient]) -> Iterator[Callable[[int], Rank]]:
    ranks: List[Rank] = []

    def begin(rank: int) -> Rank:
        ranks.append(Rank(watch(rank)))
        return ranks[-1]

    yield begin
    for rank in ranks:
        rank.end()


Come = Callable[[int], Rank]


def wait_until(done: Callable[[], bool]) -> None:
    while not done():  # the test's timeout is on
        time.sleep(0.001)


def test_all_that_can_be_asked(come: Come) -> None:
    ranks = [come(rank) for rank in range(4)]
    first, other = ranks[0].watch, ranks[1].watch
    first.set("key", "value")
    assert other.get("key", 60) == "value"
    assert [client.count("counter") for client in (first, other, first)] == [0, 1, 2]
    with pytest.raises(TimeoutError, match="rank 0: no rank set 'never' in the store within 0.1 s"):
        first.get("never", 0.1)
    with pytest.raises(InvalidArgument, match="at most 65536"):
        first.set("key", "x" * 65537)
    values = [f"{rank}" * 65536 for rank in range(4)]  # the answer comes in parts
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(rank.watch.check_in, value, 60) for rank, value in zip(ranks, values)]
        assert [call.result() for call in calls] == [values] * 4
        meetings = [pool.submit(rank.watch.meet, [2, 0], f"of {rank.watch.rank}", "m", 60) for rank in ranks[:3:2]]
        assert [call.result() for call in meetings] == [(0, ["of 2", "of 0"])] * 2


def test_answers_and_messages_do_not_mix(come: Come) -> None:
    asking, other, mortal = come(0), come(1), come(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asking.watch.get, "late", 60)
        mortal.end()  # without a goodbye: all are told
        wait_until(lambda: bool(asking.heard))
        assert not waiting.done()
        other.watch.set("late", "value")
        assert waiting.result(60) == "value"
    assert [message["type"] for message in asking.heard] == ["fail"]


def test_several_threads_ask_over_one_connection(come: Come) -> None:
    rank = come(0).watch
    with ThreadPoolExecutor(8) as pool:
        numbers = pool.map(lambda _: rank.count("counter"), range(200))
        assert sorted(numbers) == list(range(200))


def test_who_waits_for_an_answer_learns_that_the_store_is_gone(server: StoreServer, come: Come) -> None:
    rank = come(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rank.watch.get, "never", 1000)
        wait_until(lambda: server._requests.next_deadline() is not None)
        server.close()
        with pytest.raises(PeerLost, match="rank 0: lost the store at .*: the connection to it has ended"):
            waiting.result(60)
    with pytest.raises(PeerLost, match="lost the store"):
        rank.watch.count("counter")


def test_who_waits_for_an_answer_learns_that_this_process_leaves(server: StoreServer, come: Come) -> None:
    rank, later = come(0), come(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rank.watch.get, "never", 1000)
        wait_until(lambda: server._requests.next_deadline() is not None)
        rank.end()
        with pytest.raises(PeerLost, match="the connection to it has ended"):
            waiting.result(60)
    later.end()
    with pytest.raises(InvalidState, match="rank 1: the store was asked for 'count' after close"):
        later.watch.count("counter")


def test_a_store_that_does_not_answer_is_lost_after_the_deadline(come: Come, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddl.store.asking.STORE_GRACE", 0.1)
    monkeypatch.setattr("ddl.store.requests.Requests.handle", lambda *_, **__: [])
    with pytest.raises(PeerLost, match="did not answer before the deadline"):
        come(0).watch.count("counter", 0.1)


def test_a_rank_that_dies_while_others_wait_for_it(come: Come) -> None:
    first, second = come(0), come(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.watch.check_in, "", 1000)
        second.end()  # without a goodbye
        with pytest.raises(RendezvousError, match="the process of rank 1 ended"):
            waiting.result(60)


def test_another_connection_of_the_same_rank_that_ends_takes_no_question_along(
    server: StoreServer, secret: bytes, come: Come
) -> None:
    """Before ``init``, a rank may have asked over a connection of its own, and the store may see its end later."""
    rank, other = come(0), come(1)
    with StoreClient(server.address, secret, 0, 60) as before, ThreadPoolExecutor(1) as pool:
        before.set("key", "value")
        waiting = pool.submit(rank.watch.get, "late", 60)
        wait_until(lambda: server._requests.next_deadline() is not None)
        before.close()
        wait_until(lambda: ("store", 0) not in server._claims)
        other.watch.set("late", "value")
        assert waiting.result(60) == "value"
