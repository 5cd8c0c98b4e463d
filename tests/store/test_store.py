"""The store with real sockets: keys, check-in, claims and deadlines; threads stand for ranks."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List, Set

import pytest
from ports import held_port

from ddl.errors import ConfigError, InvalidArgument, InvalidState, PeerLost, ProtocolError, RendezvousError
from ddl.net.address import format_address, parse_address
from ddl.net.shortage import PAUSE
from ddl.store.requests import KEYS_LIMIT, Requests
from ddl.store.server import StoreServer
from ddl.store.store import StoreClient
from ddl.store.watch import WatchClient

Connect = Callable[[int], StoreClient]


def check_in_all(clients: List[StoreClient], values: List[str], round: int) -> List[List[str]]:
    with ThreadPoolExecutor(len(clients)) as pool:
        calls = [pool.submit(client.check_in, value, 60, round) for client, value in zip(clients, values)]
        return [call.result() for call in calls]


def test_set_and_get(connect: Connect) -> None:
    first, other = connect(0), connect(1)
    assert first.size == 4 and first.local_host == "127.0.0.1"
    for key, value in (("a", "1"), ("", ""), ("ключ\x00\n", "wert\ud800"), ("a", "2")):
        first.set(key, value)
        assert other.get(key, 60) == value


def test_get_waits_for_set(connect: Connect) -> None:
    first, other = connect(0), connect(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.get, "late", 60)
        first.set("another", "x")
        assert not waiting.done()
        first.set("late", "value")
        assert waiting.result(60) == "value"


def test_get_gives_up_and_the_client_lives_on(connect: Connect) -> None:
    client = connect(2)
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="rank 2: no rank set 'never' in the store within 0.2 s"):
        client.get("never", 0.2)
    assert time.monotonic() - begin > 0.15
    client.set("never", "now")
    assert client.get("never", 60) == "now"


def test_too_long_keys_and_values_are_refused(connect: Connect) -> None:
    client = connect(0)
    client.set("k" * 1024, "\x00" * 65536)  # six times as long in JSON
    assert client.get("k" * 1024, 60) == "\x00" * 65536
    with pytest.raises(InvalidArgument, match="65538 bytes; at most 65536"):
        client.set("k", "ä" * 32769)
    with pytest.raises(InvalidArgument, match="1025 bytes; at most 1024"):
        client.set("k" * 1025, "")
    with pytest.raises(InvalidArgument, match="65537 bytes"):
        client.check_in("x" * 65537, 5)


def test_the_number_of_keys_is_bounded() -> None:
    requests = Requests(1)
    for number in range(KEYS_LIMIT):
        requests.handle(0, {"ask": "set", "number": number, "key": str(number), "value": ""}, 0)
    [(_, refused)] = requests.handle(0, {"ask": "set", "number": 1, "key": "new", "value": ""}, 0)
    assert b"the store is full" in refused
    [(_, accepted)] = requests.handle(0, {"ask": "set", "number": 2, "key": "7", "value": "x"}, 0)
    assert b"error" not in accepted


def test_check_in_returns_all_values_in_rank_order(connect: Connect) -> None:
    clients = [connect(rank) for rank in range(4)]
    for round in range(100):  # more than the store remembers
        values = [f"rank {rank} round {round}" for rank in range(4)]
        assert check_in_all(clients, values, round) == [values] * 4


def test_check_in_of_large_values_comes_in_parts(connect: Connect) -> None:
    clients = [connect(rank) for rank in range(4)]
    values = [chr(1) * 65536, "", "ä" * 32768, '"' * 65536]
    assert check_in_all(clients, values, 0) == [values] * 4


def wait_until_somebody_waits(server: StoreServer) -> None:
    """Return when the store has a request that it answers later."""
    while server._requests.next_deadline() is None:  # the test's timeout is on
        time.sleep(0.001)


def test_check_in_names_exactly_the_missing_ranks(server: StoreServer, connect: Connect) -> None:
    clients = {rank: connect(rank) for rank in (0, 2, 3)}
    raised = []

    def come(rank: int, timeout: float) -> None:
        with pytest.raises(RendezvousError) as caught:
            clients[rank].check_in("", timeout)
        raised.append(str(caught.value))

    patient = threading.Thread(target=come, args=(2, 200))
    patient.start()
    wait_until_somebody_waits(server)
    come(0, 0.2)
    patient.join(100)
    assert len(raised) == 2  # the first to run out of time ends it for all
    assert all("ranks 1, 3 of 4 never came within 0.2 s" in text for text in raised)
    come(3, 60)  # whoever comes later learns it at once
    assert "too late: ranks 1, 3 of 4" in raised[2]


def test_rounds_do_not_mix_and_are_not_used_twice(connect: Connect) -> None:
    clients = [connect(rank) for rank in range(4)]
    assert check_in_all(clients, ["a"] * 4, 1)[0] == ["a"] * 4
    assert check_in_all(clients, ["b"] * 4, 0)[0] == ["b"] * 4
    with pytest.raises(InvalidArgument, match="rank 0 has already checked in to round 1"):
        clients[0].check_in("c", 5, 1)


def test_a_rank_may_leave_and_come_again(server: StoreServer, secret: bytes) -> None:
    for round in range(20):
        opened = [kind(server.address, secret, rank, 60) for rank in range(4) for kind in (StoreClient, WatchClient)]
        clients = [client for client in opened if isinstance(client, StoreClient)]
        assert check_in_all(clients, list("abcd"), round) == [list("abcd")] * 4
        for client in opened:
            if isinstance(client, WatchClient):
                client.send({"type": "bye"})
            client.close()
    assert server.first_failure is None


def test_a_rank_that_is_taken_is_refused(server: StoreServer, secret: bytes, connect: Connect) -> None:
    first = connect(1)
    with pytest.raises(ConfigError, match="rank 1 of 4 is already taken by another process"):
        StoreClient(server.address, secret, 1, 60)
    first.set("still", "there")
    with pytest.raises(ConfigError, match="rank 4 is not a rank of this job of 4"):
        WatchClient(server.address, secret, 4, 60)


def test_joining_has_a_deadline_and_says_where() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # it listens, but never answers
        address = format_address(*deaf.getsockname())
        with pytest.raises(RendezvousError, match=f"rank 3 could not join the store at {address} within 0.3 s"):
            StoreClient(address, bytes(32), 3, 0.3)
    with held_port() as port, pytest.raises(RendezvousError, match="refused"):
        StoreClient(format_address("127.0.0.1", port), bytes(32), 3, 0.3)
    with pytest.raises(ConfigError, match="DDL_STORE"):
        StoreClient("nonsense", bytes(32), 3, 0.3)


def test_a_client_that_comes_before_the_store_waits_for_it(secret: bytes) -> None:
    with held_port() as port, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(StoreClient, f"127.0.0.1:{port}", secret, 0, 60)
        time.sleep(0.1)  # so that it is refused before, mostly
        with StoreServer(secret, 1, port=port), coming.result(60) as client:
            client.set("a", "b")
            assert client.get("a", 60) == "b"


def test_the_end_of_the_store_is_noticed(
    server: StoreServer, connect: Connect, watch: Callable[[int], WatchClient]
) -> None:
    client, watching = connect(0), watch(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "never", 200)
        wait_until_somebody_waits(server)
        server.close()
        server.close()
        with pytest.raises(PeerLost, match="rank 0: lost the store"):
            waiting.result(100)
    with pytest.raises(PeerLost, match="rank 0: lost the store"):
        client.set("a", "b")
    assert watching.receive() is None


def test_a_closed_client_says_so(connect: Connect) -> None:
    client = connect(0)
    client.close()
    client.close()
    with pytest.raises(InvalidState, match="after close"):
        client.set("a", "b")


def test_closing_leaves_no_thread_and_no_descriptor(secret: bytes) -> None:
    def sockets() -> Set[str]:
        """By their numbers in the kernel. (What others have left here may go meanwhile.)"""
        numbers = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # it was that of the folder
                numbers.add(os.readlink(f"/proc/self/fd/{name}"))
        return numbers

    before, threads = sockets(), set(threading.enumerate())
    with StoreServer(secret, 2) as server:
        with StoreClient(server.address, secret, 0, 60), WatchClient(server.address, secret, 1, 60):
            assert sockets() - before and set(threading.enumerate()) - threads
    StoreServer(secret, 2, start=False).close()
    assert sockets() <= before and set(threading.enumerate()) <= threads


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_keep_a_dead_rank_alive(
    server: StoreServer, watch: Callable[[int], WatchClient]
) -> None:
    leaver, survivor = watch(0), watch(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # as a data loader's worker: it lives on when its rank dies
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        leaver.close()
        deadline = time.monotonic() + 60
        message = {}
        while not message and time.monotonic() < deadline:
            message = survivor.receive() or {}
        assert message["kind"] == "PeerLost" and message["culprit"] == 0
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_close_when_the_thread_ends_before_it_is_woken() -> None:
    server = StoreServer(bytes(32), 1)
    waker, thread = server._waker, server._thread

    class LateWaker:
        """Wakes when the thread, which a rank or the clock had woken, has seen that it is to end."""

        def send(self, data: bytes) -> int:
            thread.join(100)
            assert not thread.is_alive()
            return waker.send(data)

        def close(self) -> None:
            waker.close()

    server._waker = LateWaker()  # type: ignore[assignment]
    server._patience = lambda: 0.0  # type: ignore[method-assign]
    with socket.create_connection(parse_address(server.address)):  # from now on it does not sleep
        server.close()
    assert waker.fileno() == -1


def meet_all(clients: List[StoreClient], ranks: List[int], timeout: float = 60) -> List[object]:
    with ThreadPoolExecutor(len(clients)) as pool:
        calls = [pool.submit(client.meet, ranks, f"of {client.rank}", "groups", timeout) for client in clients]
        return [call.exception() or call.result() for call in calls]


def test_some_ranks_meet_again_and_again(connect: Connect) -> None:
    rank_0, rank_1, rank_3 = connect(0), connect(1), connect(3)
    for number in range(0, 6, 2):
        assert meet_all([rank_0, rank_3], [3, 0]) == [(number, ["of 3", "of 0"])] * 2
        assert meet_all([rank_0, rank_1], [0, 1]) == [(number + 1, ["of 0", "of 1"])] * 2
    assert rank_0.count("groups") == 6


def test_of_a_meeting_that_failed_nothing_is_left(server: StoreServer, connect: Connect) -> None:
    rank_0, rank_1, rank_2 = connect(0), connect(1), connect(2)
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(rank_1.meet, [0, 1, 2], "of 1", "groups", 200)
        wait_until_somebody_waits(server)
        with pytest.raises(RendezvousError, match="rank 2 did not come within 0.2 s"):
            rank_0.meet([0, 1, 2], "of 0", "groups", 0.2)
        assert isinstance(patient.exception(100), RendezvousError) and "rank 2 did not" in str(patient.exception())
    with pytest.raises(RendezvousError, match="ranks 0, 1 did not come"):
        rank_2.meet([0, 1, 2], "late", "groups", 0.2)
    assert meet_all([rank_0, rank_1, rank_2], [0, 1, 2]) == [(0, ["of 0", "of 1", "of 2"])] * 3


def test_who_is_gone_does_not_come_to_a_meeting() -> None:
    requests = Requests(2)
    ask = {"ask": "meet", "key": "groups", "value": "x" * 9, "ranks": "0,1", "timeout": 5}
    assert requests.handle(0, {**ask, "number": 1}, 0) == []
    requests.dropped(0)
    assert requests.handle(1, {**ask, "number": 1}, 1) == [] and requests.next_deadline() == 6
    assert requests.handle(0, {**ask, "number": 2}, 2) != [] and requests.next_deadline() is None
    for wrong in ("0", "1,1", "0,1,2", "1,", "-1,1", "1," + "9" * 5000, ""):
        with pytest.raises(ProtocolError, match="rank 1 wants to meet"):
            requests.handle(1, {**ask, "number": 3, "ranks": wrong}, 3)


def test_nobody_waits_for_a_rank_whose_process_has_ended(server: StoreServer, connect: Connect) -> None:
    rank_0, rank_1, rank_3 = connect(0), connect(1), connect(3)
    how = "rank 2 (pid 7) exited with status 0"
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(rank_0.check_in, "", 60)
        meeting = pool.submit(rank_3.meet, [2, 3], "", "groups", 60)
        assert not waiting.done() and not meeting.done()
        server.ended(2, how)
        assert str(waiting.exception(60)) == (
            f"rank 0 of 4 checked in, but {how} and did not come; "
            "see what it printed, and let every rank call init() as often as the others do"
        )
        assert str(meeting.exception(60)) == f"{how} and did not come"
    for late in (
        lambda: rank_1.check_in("", 60),
        lambda: rank_1.check_in("", 60, 1),
        lambda: rank_1.meet([1, 2], "", "g", 60),
    ):
        with pytest.raises(RendezvousError, match=r"rank 2 \(pid 7\) exited with status 0 and did not come"):
            late()
    assert meet_all([rank_0, rank_1], [0, 1]) == [(0, ["of 0", "of 1"])] * 2  # nobody else is the worse for it


def test_a_rank_that_has_checked_in_before_it_ended_is_not_missed(server: StoreServer, connect: Connect) -> None:
    clients = [connect(rank) for rank in range(4)]
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(client.check_in, "", 60) for client in clients[1:]]
        clients[0].set("others", "wait")  # so that they are there
        wait_until_somebody_waits(server)
        calls.append(pool.submit(clients[0].check_in, "", 60))
        assert [call.result(60) for call in calls] == [[""] * 4] * 4
    server.ended(1, "rank 1 exited")
    clients[1].close()
    with pytest.raises(RendezvousError, match="rank 1 exited and did not come"):
        clients[0].check_in("", 60, 1)


def test_a_process_that_speaks_for_a_rank_counts_whatever_became_of_another(
    server: StoreServer, connect: Connect
) -> None:
    clients = [connect(rank) for rank in range(3)]
    server.ended(3, "a script that left its program running exited")
    clients.append(connect(3))
    assert check_in_all(clients, [""] * 4, 0) == [[""] * 4] * 4


def test_a_rank_that_dies_on_its_way_into_the_job_is_named_at_once(server: StoreServer, secret: bytes) -> None:
    with StoreClient(server.address, secret, 0, 60) as zero, ThreadPoolExecutor(1) as pool:
        store, watch = (kind(server.address, secret, 1, 60) for kind in (StoreClient, WatchClient))
        waiting = pool.submit(zero.check_in, "", 60)
        watch.close()
        store.close()
        text = "the process of rank 1 ended, as its connection closed without a goodbye, and did not come"
        assert text in str(waiting.exception(60))


class CountedListener:
    """Counts how often a store tries to accept a connection."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.attempts = 0

    def accept(self) -> Any:
        self.attempts += 1
        return self._listener.accept()

    def fileno(self) -> int:
        return self._listener.fileno()

    def close(self) -> None:
        self._listener.close()


def test_a_store_without_descriptors_says_so_once_and_serves_when_it_has_some(
    server: StoreServer, secret: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    server._door._listener = listener = CountedListener(server._door._listener)  # type: ignore[assignment]
    with socket.socket() as visitor:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            begin = time.monotonic()
            visitor.connect(parse_address(server.address))
            while listener.attempts < 4:  # the test's timeout is on
                time.sleep(0.01)
            attempts = listener.attempts
            assert attempts <= (time.monotonic() - begin) / PAUSE + 1  # it does not try all the time
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with StoreClient(server.address, secret, 0, 60) as client:
        client.set("a", "1")
    text = "no rank can join the store: too many open files: this process may have 256; close some, or raise the limit"
    assert [text in record.getMessage() for record in caplog.records] == [True]
