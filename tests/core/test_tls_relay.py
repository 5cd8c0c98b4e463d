"""A relay between an encrypted connection and a plain socket (csrc/tls/relay.h), for code that knows only sockets."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from core.tls_wire import Wire, flipped

from ddl import _core
from ddl.bootstrap.plain_end import plain_end
from ddl.net.encryption import EncryptedSocket


class Relays:
    """Both ends of an encrypted connection, as code sees them that knows only sockets."""

    def __init__(self, wire: Wire) -> None:
        client, server = wire.shake_hands()
        self.near = plain_end(EncryptedSocket(wire.client, client))
        self.far = plain_end(EncryptedSocket(wire.server, server))
        self._wire = wire
        self._over = threading.Event()
        self._between = threading.Thread(target=wire._carry_all, args=(self._over,))

    def __enter__(self) -> Relays:
        self._between.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.near.close()
        self.far.close()
        self._over.set()
        self._between.join()


def test_sockets_behind_a_relay_carry_both_ways_at_once(wire: Wire) -> None:
    texts = [os.urandom(3 << 20), os.urandom(3 << 20)]
    with Relays(wire) as relays, ThreadPoolExecutor(4) as pool:
        ends = [relays.near, relays.far]
        for end, text in zip(ends, texts):
            pool.submit(end.sendall, text)
        read = list(pool.map(lambda end: end.recv(3 << 20, socket.MSG_WAITALL), ends))
    assert read == texts[::-1]


def test_what_was_written_before_the_end_still_comes(wire: Wire) -> None:
    text = os.urandom(1 << 20)
    with Relays(wire) as relays:
        relays.near.sendall(text)
        relays.near.close()
        assert relays.far.recv(len(text), socket.MSG_WAITALL) == text
        assert relays.far.recv(1) == b""


def test_a_relay_says_why_it_has_ended(wire: Wire) -> None:
    client, server = wire.shake_hands()
    near, far = socket.socketpair()
    with near, far:
        client.write(b"a part of the state")
        wire.server_side.sendall(flipped([wire.record()]))
        assert "somebody on the way has changed it" in _core.relay(server, wire.server.fileno(), far.fileno())
        near.setblocking(False)
        with pytest.raises(BlockingIOError):
            near.recv(1)


def test_a_relay_whose_other_end_is_gone_sleeps_until_its_reader_comes(wire: Wire) -> None:
    client, server = wire.shake_hands()
    near, far = socket.socketpair()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    text = os.urandom(64 << 10)
    sent, used = 0, [0.0]

    def carry() -> None:
        _core.relay(server, wire.server.fileno(), far.fileno())
        used[0] = time.thread_time()
        far.close()

    thread = threading.Thread(target=carry)
    thread.start()
    with near:
        near.sendall(b"an answer that nobody takes")
        while sent < len(text):
            sent += client.write(text[sent : sent + (16 << 10)])
            wire.server_side.sendall(wire.record())
        wire.server_side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.server_side.close()  # a reset
        time.sleep(1.0)
        near.sendall(b"more of it")
        time.sleep(1.0)
        read = b""
        while piece := near.recv(1 << 16):
            read += piece
        thread.join()
    assert text.startswith(read) and used[0] < 0.5  # a reset may take what had not been read


@pytest.mark.slow
def test_a_relay_does_not_wait_for_ever_for_one_who_takes_nothing(wire: Wire) -> None:
    client, _ = wire.shake_hands()
    refused = 0
    while refused < 50:  # until the kernel takes no more, and does not hand on what it has taken
        refused = 0 if client.write(bytes(16 << 10)) else refused + 1
        time.sleep(0.01 if refused else 0.0)
    near, far = socket.socketpair()
    with far:
        near.sendall(b"what nobody will read")
        near.close()
        assert _core.relay(client, wire.client.fileno(), far.fileno()) == ""
        assert far.recv(100, socket.MSG_DONTWAIT) == b"what nobody will read"  # it was not even begun


#: The other end of what a daemon thread carries is closed when the interpreter ends already.
ENDS_LATE = """
import socket, sys, threading, time
from ddl import _core
ends, plain = socket.socketpair(), socket.socketpair()
client, server = (_core.TlsSession(end.fileno(), end is ends[1], bytes(32), True) for end in ends)
while not [session.shake_hands() for session in (client, server)] == [True, True]:
    pass

class Last:
    def __init__(self, close=plain[0].close, sleep=time.sleep):
        self.close, self.sleep = close, sleep
    def __del__(self):
        self.close()
        self.sleep(0.5)  # while the interpreter ends, the thread comes back

threading.Thread(target=_core.relay, args=(server, ends[1].fileno(), plain[1].fileno()), daemon=True).start()
sys.last = Last()
"""


def test_a_relay_may_end_while_the_interpreter_ends() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_LATE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
