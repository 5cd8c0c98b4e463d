"""Several places: which is tried when, which connection is taken, and what is told when there is none."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Iterator, List, Tuple

import pytest
from ipv6 import needs_ipv6

from ddl.net import connecting
from ddl.net.address import format_address, listen
from ddl.net.connecting import connect, connect_to_first, first_to_answer

Place = Tuple[str, int]
NEVER = 100.0


def place_of(sock: socket.socket) -> Place:
    host, port = sock.getsockname()[:2]
    return str(host), int(port)


@contextlib.contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[Place]:
    with listen(host, 0) as listener:
        yield place_of(listener)


@contextlib.contextmanager
def silent(opens: threading.Event) -> Iterator[Place]:
    """A place that takes no connection until it opens: its queue is full, so that the kernel drops those who call."""
    with socket.socket() as listener, contextlib.ExitStack() as visitors:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):
            visitor = visitors.enter_context(socket.socket())
            visitor.setblocking(False)
            visitor.connect_ex(place_of(listener))

        def open_it() -> None:
            opens.wait()
            with contextlib.suppress(OSError):
                for _ in range(2):
                    listener.accept()[0].close()

        thread = threading.Thread(target=open_it)
        thread.start()
        try:
            yield place_of(listener)
        finally:
            opens.set()
            thread.join()


@pytest.fixture
def refusing() -> Iterator[Place]:
    with socket.socket() as bound:  # nobody else can have its port
        bound.bind(("127.0.0.1", 0))
        yield place_of(bound)


@needs_ipv6
@pytest.mark.parametrize("there", ["127.0.0.1", "::1"])
def test_the_other_address_of_a_name_is_tried(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "resolve", lambda host: ["127.0.0.1", "::1"])
    with listening(there) as (_, port), connect("both", port, NEVER) as sock:
        assert sock.getpeername()[:2] == (there, port)
        assert sock.gettimeout() == NEVER
    with pytest.raises(ConnectionRefusedError, match=rf"127.0.0.1:{port}: .*refused; \[::1\]:{port}: .*refused"):
        connect("both", port, NEVER)


def test_a_place_that_does_not_answer_keeps_nobody_waiting(refusing: Place) -> None:
    with silent(threading.Event()) as nothing, listening() as there, listening() as other:
        sock, number = connect_to_first([nothing, refusing, there, other], NEVER)
        with sock:
            assert number == 2 and sock.getpeername() == there
        texts = [format_address(*place) for place in (nothing, there)]
        assert first_to_answer(texts, NEVER) == texts[1]


def test_the_first_is_taken_if_it_answers_at_once() -> None:
    with listening() as there, listening() as other:
        assert first_to_answer([format_address(*there), format_address(*other)], NEVER) == format_address(*there)


def test_a_place_may_still_answer_when_the_next_one_is_tried(refusing: Place) -> None:
    opens = threading.Event()
    tried: List[socket.socket] = []

    def prepare(sock: socket.socket) -> None:
        tried.append(sock)
        if len(tried) == 2:
            opens.set()

    with silent(opens) as late:
        sock, number = connect_to_first([late, refusing], NEVER, prepare)
        sock.close()
        assert number == 0 and len(tried) == 2


def test_what_all_have_said(refusing: Place) -> None:
    with silent(threading.Event()) as nothing:
        with pytest.raises(ConnectionRefusedError, match=rf":{nothing[1]}: timed out; .*:{refusing[1]}: .*refused"):
            connect_to_first([nothing, refusing], 0.3)
        with pytest.raises(TimeoutError, match=rf":{refusing[1]}: .*refused; .*:{nothing[1]}: timed out"):
            connect_to_first([refusing, nothing], 0.3)
        with pytest.raises(TimeoutError, match="^timed out$"):
            connect_to_first([nothing], 0.01)
    with pytest.raises(ConnectionRefusedError, match=r"^\[Errno 111\] Connection refused$"):
        connect_to_first([refusing], NEVER)
    with pytest.raises(OSError, match="no address is known"):
        first_to_answer([], NEVER)


def test_all_sockets_are_prepared_and_all_but_one_closed(refusing: Place) -> None:
    before = os.listdir("/proc/self/fd")
    prepared: List[int] = []

    def prepare(sock: socket.socket) -> None:
        sock.bind(("127.0.0.2", 0))
        prepared.append(sock.fileno())

    with listening() as there:
        sock, number = connect_to_first([refusing, there], NEVER, prepare)
        with sock:
            assert number == 1 and len(prepared) == 2
            assert sock.getsockname()[0] == "127.0.0.2"
        with pytest.raises(OSError, match="assign requested address"):
            connect_to_first([there], NEVER, lambda sock: sock.bind(("192.0.2.1", 0)))
        with pytest.raises(ZeroDivisionError):
            connect_to_first([there], NEVER, lambda sock: print(1 // 0))
    assert os.listdir("/proc/self/fd") == before
