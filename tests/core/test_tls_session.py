"""One encrypted connection: what passes by on the way, and what somebody there may do to it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Callable, Iterator, List, Tuple

import pytest

from ddl import _core
from ddl.bootstrap.plain_end import plain_end
from ddl.errors import PeerLost, ProtocolError
from ddl.net.encryption import EncryptedSocket

KEY = bytes(range(32))
SECONDS = 60.0  # for what ends by itself
_HEADER = 5  # bytes before each record: type, version, length


def shaken(sock: socket.socket, server: bool, key: bytes = KEY, **options: int) -> _core.TlsSession:
    """Return a session that has shaken hands."""
    session = _core.TlsSession(sock.fileno(), server, key, True, **options)
    while not session.shake_hands():
        assert select.select([sock], [], [], SECONDS)[0], "the other end is silent"
    return session


class Wire:
    """Two sockets that one who sits between them joins, by ``carry``."""

    def __init__(self, stack: ExitStack) -> None:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def pair() -> Tuple[socket.socket, socket.socket]:
            near = stack.enter_context(socket.create_connection(listener.getsockname()))
            return near, stack.enter_context(listener.accept()[0])

        self.client, self.client_side = pair()
        self.server, self.server_side = pair()
        self.seen = b""

    def shake_hands(self, server_key: bytes = KEY, **options: int) -> Tuple[_core.TlsSession, _core.TlsSession]:
        """Return the client's session and the server's."""
        over = threading.Event()
        between = threading.Thread(target=self._carry_all, args=(over,))
        sessions: List[_core.TlsSession] = []
        errors: List[Exception] = []

        def serve() -> None:
            try:
                sessions.append(shaken(self.server, True, server_key, **options))
            except Exception as error:
                errors.append(error)

        server = threading.Thread(target=serve)
        between.start()
        server.start()
        try:
            client = shaken(self.client, False, **options)
        finally:
            server.join()
            over.set()
            between.join()
        if errors:
            raise errors[0]
        return client, sessions[0]

    def _carry_all(self, over: threading.Event) -> None:
        ways = {self.client_side: self.server_side, self.server_side: self.client_side}
        while ways and (not over.is_set() or select.select(list(ways), [], [], 0.0)[0]):
            for source in select.select(list(ways), [], [], 0.01)[0]:
                data = source.recv(1 << 16)
                if data:
                    ways[source].sendall(data)
                else:
                    ways.pop(source).shutdown(socket.SHUT_WR)

    def record(self) -> bytes:
        """Take a record that the client has sent; it does not go on."""
        header = self._take(_HEADER)
        return header + self._take(int.from_bytes(header[3:], "big"))

    def _take(self, count: int) -> bytes:
        taken = self.client_side.recv(count, socket.MSG_WAITALL)
        self.seen += taken
        return taken


@pytest.fixture
def wire() -> Iterator[Wire]:
    with ExitStack() as stack:
        _core.load_openssl("")
        yield Wire(stack)


def all_of(session: _core.TlsSession, sock: socket.socket, count: int) -> bytes:
    """Read so many bytes."""
    text = b""
    while len(text) < count:
        piece = session.read(count - len(text))
        if not piece:
            assert select.select([sock], [], [], SECONDS)[0], f"{len(text)} of {count} bytes came"
        text += piece
    return text


def test_what_is_written_is_read_and_nobody_between_sees_it(wire: Wire) -> None:
    client, server = wire.shake_hands()
    for text in (b"a gradient " * 3, os.urandom(16 << 10), b"b"):
        assert client.write(text) == len(text)
        record = wire.record()
        assert record[0] == 23 and 0 < len(record) - _HEADER - len(text) < 64
        assert text[:8] not in record or len(text) < 8
        wire.server_side.sendall(record)
        assert all_of(server, wire.server, len(text)) == text
    assert server.write(b"an answer") == 9
    answer = wire.server_side.recv(1000)
    assert b"answer" not in answer
    wire.client_side.sendall(answer)
    assert all_of(client, wire.client, 9) == b"an answer"


def test_a_longer_text_is_cut_and_the_same_text_never_looks_the_same(wire: Wire) -> None:
    client, _ = wire.shake_hands()
    assert client.write(bytes(100_000)) == 16 << 10
    assert client.write(bytes(16 << 10)) == 16 << 10
    assert wire.record() != wire.record()


def flipped(records: List[bytes]) -> bytes:
    first = bytearray(records[0])
    first[_HEADER + 3] ^= 1
    return bytes(first)


#: What somebody between does with three records.
TAMPERING = {
    "a bit is flipped": flipped,
    "the last bit is flipped": lambda records: records[0][:-1] + bytes([records[0][-1] ^ 1]),
    "one is dropped": lambda records: records[1],
    "one is repeated": lambda records: records[0] + records[0],
    "two are swapped": lambda records: records[1] + records[0],
    "one of his own": lambda records: bytes([23, 3, 3, 0, 32]) + bytes(32),
    "the length is wrong": lambda records: records[0][:3] + bytes([255, 255]) + records[0][5:],
    "something else": lambda records: b"GET / HTTP/1.0\r\n\r\n",
}


@pytest.mark.parametrize("tamper", TAMPERING.values(), ids=TAMPERING.keys())
def test_who_changes_anything_on_the_way_ends_the_connection(
    wire: Wire, tamper: Callable[[List[bytes]], bytes]
) -> None:
    client, server = wire.shake_hands()
    texts = [b"first text", b"second one", b"last words"]
    for text in texts:
        client.write(text)
    wire.server_side.sendall(tamper([wire.record() for _ in texts]))
    read = b""
    with pytest.raises(PeerLost, match="somebody on the way has changed it"):
        while len(read) < 100:
            read += all_of(server, wire.server, 1)
    assert read in (b"", b"first text")  # never anything else
    with pytest.raises(PeerLost):  # and it stays so
        server.read(1)


def test_a_connection_that_is_cut_ends_behind_what_came(wire: Wire) -> None:
    client, server = wire.shake_hands()
    client.write(b"all")
    client.write(b"not all")
    wire.server_side.sendall(wire.record() + wire.record()[:-1])
    wire.server_side.close()
    assert all_of(server, wire.server, 3) == b"all"
    with pytest.raises(PeerLost, match="connection closed by the peer"):
        all_of(server, wire.server, 1)


def test_who_does_not_know_the_key_is_refused(wire: Wire) -> None:
    with pytest.raises(ProtocolError, match="OpenSSL: "):
        wire.shake_hands(server_key=bytes(32))


def test_who_does_not_encrypt_is_refused(wire: Wire) -> None:
    wire.server_side.sendall(b"DDL\0" * 100)
    with pytest.raises(ProtocolError, match="OpenSSL: "):
        shaken(wire.server, True)


#: Of somebody who has no more than a certificate: nobody shall trust it, whoever has signed it.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgHFlH70S6JePBjn1q
Efo8OXXc4i1v86BhqLkvXholeRehRANCAASz7xZF/S/Tw2SBtKKCfe2+UEuEjRqh
Qu+MZdwAhNBYKsHfFsEJpmkqR6UKHI0Q6o/c1s8G14TMSwYuqAU01uoa
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBejCCASGgAwIBAgIULA2nKYY4yxBZVwvt7ZUkpPVvifAwCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHYmV0d2VlbjAgFw0yNjExMzAxMDM1MDVaGA8yMTI2MTEwNjEw
MzUwNVowEjEQMA4GA1UEAwwHYmV0d2VlbjBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABLPvFkX9L9PDZIG0ooJ97b5QS4SNGqFC74xl3ACE0Fgqwd8WwQmmaSpHpQoc
jRDqj9zWzwbXhMxLBi6oBTTW6hqjUzBRMB0GA1UdDgQWBBQ56REhN34qmF2bK4rz
4cBFBIWZETAfBgNVHSMEGDAWgBQ56REhN34qmF2bK4rz4cBFBIWZETAPBgNVHRMB
Af8EBTADAQH/MAoGCCqGSM49BAMCA0cAMEQCIHw/Ey3jvGl/nJnX/k5mfC6BfwHj
NRkd8IsDRTJKabahAiBqYDPwpUNZF/rIyb4Fna/QpaGsSEZdZA6Zcg0hueQXDA==
-----END CERTIFICATE-----
"""


def test_a_certificate_is_no_key(wire: Wire, tmp_path: Path) -> None:
    """Who sits between ends the client's connection himself, as if he did not know what a key is."""
    (tmp_path / "certificate.pem").write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem")
    read: List[bytes] = []

    def pretend() -> None:
        try:
            with context.wrap_socket(wire.client_side, server_side=True) as pretender:
                read.append(pretender.recv(100))
        except (OSError, ssl.SSLError) as error:
            read.append(repr(error).encode())

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(ProtocolError, match="certificate verify failed"):
        client = shaken(wire.client, False)
        client.write(b"a gradient")
    wire.client.close()
    thread.join()
    assert b"SSLError" in read[0], read  # he has learned nothing


def test_who_offers_no_key_is_refused(wire: Wire) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def pretend() -> None:
        with contextlib.suppress(OSError, ssl.SSLError), context.wrap_socket(wire.server_side) as pretender:
            pretender.recv(1)

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(ProtocolError, match="OpenSSL: "):
        shaken(wire.server, True)
    wire.server.close()
    thread.join()


def test_a_key_has_32_bytes(wire: Wire) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        _core.TlsSession(wire.client.fileno(), False, b"short", True)


def test_there_is_a_new_key_after_some_bytes(wire: Wire) -> None:
    client, server = wire.shake_hands(key_lasts=1000)
    lengths = []
    for number in range(20):
        text = bytes([number]) * 400
        assert client.write(text) == 400
        while not lengths or lengths[-1] < 400:
            record = wire.record()
            lengths.append(len(record))
            wire.server_side.sendall(record)
        assert all_of(server, wire.server, 400) == text
        lengths.append(0)
    assert sum(0 < length < 100 for length in lengths) == 6  # records that only say so: after 1200 bytes each


def test_a_write_that_had_to_wait_goes_on_where_it_was(wire: Wire) -> None:
    client, server = wire.shake_hands()
    text = os.urandom(8 << 20)
    sent, received, waited = 0, b"", 0
    while len(received) < len(text):
        done = client.write(text[sent : sent + (16 << 10)])
        sent += done
        waited += done == 0
        if done == 0:  # the kernel is full: somebody between carries what is there
            if select.select([wire.client_side], [], [], SECONDS if sent < len(text) else 0.01)[0]:
                wire.server_side.sendall(wire.client_side.recv(1 << 16))
            while piece := server.read(1 << 16):
                received += piece
    assert waited > 1 and received == text


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


@pytest.mark.parametrize(
    ("path", "words"),
    [("/nowhere/libssl.so", "DDL_OPENSSL=/nowhere/libssl.so: "), ("libm.so.6", "has no TLS_method")],
)
def test_a_library_that_is_of_no_use_is_named(path: str, words: str) -> None:
    code = f"from ddl import _core\n_core.load_openssl({path!r})"  # once per process
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "ResourceError" in done.stderr and words in done.stderr
