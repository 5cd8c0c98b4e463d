"""Sockets that encrypt, after the proof: they behave as sockets do, and who sits between reads and changes nothing."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator, List, Tuple

import pytest
from carrying import carry
from proving import prove_as_server

from ddl.errors import PeerLost, ProtocolError
from ddl.net import auth
from ddl.net.auth import AuthError, FrameReader, ServerProof, encode_frame, prove_as_client, recv_frame, send_frame
from ddl.net.encryption import EncryptedSocket

SECRET = bytes(range(32))
MARK = "nobody else may read this"


def soon() -> float:
    return time.monotonic() + 60


class Between:
    """Carries bytes between two ends, both ways, keeps what it has seen, and flips the bits that ``flip`` names."""

    def __init__(self) -> None:
        self.client, self._near = socket.socketpair()
        self.server, self._far = socket.socketpair()
        self.seen = b""
        self.flip: List[int] = []  # of the next pieces: flip a bit of this byte
        self._thread = threading.Thread(target=carry, args=(self._near, self._far, self._pass_on))
        self._thread.start()

    def _pass_on(self, data: bytes) -> bytes:
        self.seen += data
        changed = bytearray(data)
        if data and self.flip:
            changed[self.flip.pop(0)] ^= 1
        return bytes(changed)

    def close(self) -> None:
        for sock in (self.client, self.server):
            sock.close()
        self._thread.join()
        self._near.close()
        self._far.close()


@pytest.fixture
def between() -> Iterator[Between]:
    carrier = Between()
    yield carrier
    carrier.close()


def proved(between: Between, read_ahead: bool = False) -> Tuple[socket.socket, socket.socket]:
    """Return the sockets of the client and of the server; ``between`` closes them."""
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(prove_as_server, between.server, SECRET, soon(), encrypt=True, read_ahead=read_ahead)
        client = prove_as_client(between.client, SECRET, soon(), encrypt=True, read_ahead=read_ahead)
        between.client, between.server = client, server.result(60)
    return client, between.server


@pytest.mark.parametrize("read_ahead", [False, True])
def test_frames_go_both_ways_and_nobody_reads_them(between: Between, read_ahead: bool) -> None:
    client, server = proved(between, read_ahead)
    assert isinstance(client, EncryptedSocket) and isinstance(server, EncryptedSocket)
    for number in range(3):
        send_frame(client, {"text": MARK, "number": number})
    send_frame(client, {"text": MARK * 10_000})
    assert [recv_frame(server, soon()).get("number") for _ in range(4)] == [0, 1, 2, None]
    send_frame(server, {"answer": MARK})
    assert recv_frame(client, soon()) == {"answer": MARK}
    assert len(between.seen) > 10_000 * len(MARK) and MARK[:10].encode() not in between.seen


def test_it_waits_as_a_socket_waits(between: Between) -> None:
    client, server = proved(between)
    for do in (lambda: client.recv(10, socket.MSG_DONTWAIT), lambda: client.setblocking(False) or client.recv(10)):
        with pytest.raises(BlockingIOError):
            do()
    client.settimeout(0.05)
    with pytest.raises(socket.timeout):
        client.recv(10)
    assert server.send(b"a word") == 6
    client.settimeout(None)
    assert client.recv(2) == b"a " and client.recv(100) == b"word"
    server.shutdown(socket.SHUT_WR)
    assert client.recv(10) == b"" and client.recv(10) == b""


@pytest.mark.parametrize("looks", [False, True])
def test_it_ends_as_a_socket_ends(looks: bool) -> None:
    own, theirs = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(prove_as_server, theirs, SECRET, soon(), encrypt=True)
        with prove_as_client(own, SECRET, soon(), encrypt=True) as client:
            accepted.result(60).close()
            assert not looks or client.recv(10) == b""
            with pytest.raises(BrokenPipeError):
                client.send(b"a word")


def test_a_sender_that_could_not_send_comes_again_and_nothing_is_lost_or_sent_twice(between: Between) -> None:
    client, server = proved(between)
    text, refused = os.urandom(4 << 20), 0

    def read_all(sock: socket.socket) -> bytes:
        got = bytearray()
        while len(got) < len(text):
            got += sock.recv(1 << 16)
        return bytes(got)

    with ThreadPoolExecutor(3) as pool:
        rest = memoryview(text)
        while refused < 3:  # nobody reads yet
            try:
                rest = rest[client.send(rest, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                refused += 1
                time.sleep(0.05)
        assert 0 < len(rest) < len(text)
        readers = [pool.submit(read_all, sock) for sock in (server, client)]
        answering = pool.submit(auth.write_all, server, text, soon())  # each end sends and receives at the same time
        auth.write_all(client, bytes(rest), soon())
        assert all(reader.result(60) == text for reader in readers)
        answering.result(60)


def test_the_kernel_knows_what_is_left(between: Between) -> None:
    """Who waits by poll, and reads once, misses nothing."""
    client, server = proved(between)
    reader, frames, polls = FrameReader("x"), [], 0
    for number in range(20):
        auth.write_all(client, encode_frame({"number": number, "fill": "." * 1000 * number}), soon())
    while len(frames) < 20:
        assert select.select([server], [], [], 60)[0], f"{len(frames)} frames came"
        polls += 1
        frames += reader.feed(server.recv(1 << 16, socket.MSG_DONTWAIT))
    assert [frame["number"] for frame in frames] == list(range(20)) and polls >= 20


@pytest.mark.parametrize("byte", [0, 1, 7, -1])
def test_who_changes_a_bit_ends_the_connection(between: Between, byte: int) -> None:
    client, server = proved(between)
    send_frame(client, {"number": 0})
    assert recv_frame(server, soon()) == {"number": 0}
    between.flip.append(byte)
    send_frame(client, {"number": 1, "fill": "." * 500})
    with pytest.raises(PeerLost, match="somebody on the way has changed it"):
        recv_frame(server, soon())
    with pytest.raises(OSError) as caught:
        server.send(b"x")
    assert caught.value.errno == errno.ECONNABORTED


@pytest.mark.parametrize("piece", range(5))  # hello, answer, the client's proof and two flights of TLS
def test_who_changes_a_bit_of_the_proof_or_of_the_agreement_lets_nobody_in(between: Between, piece: int) -> None:
    between.flip += [-1] * (piece + 1)
    errors: List[BaseException] = []

    def serve() -> None:
        try:
            recv_frame(prove_as_server(between.server, SECRET, soon(), encrypt=True), soon())
        except (AuthError, ProtocolError, PeerLost) as error:
            errors.append(error)
        between.server.shutdown(socket.SHUT_RDWR)

    server = threading.Thread(target=serve)
    server.start()
    try:
        client = prove_as_client(between.client, SECRET, soon(), encrypt=True)
        send_frame(client, {"text": MARK})
        between.client = client
    except (AuthError, PeerLost) as error:
        errors.append(error)
        between.client.shutdown(socket.SHUT_RDWR)
    server.join()
    assert errors and MARK.encode() not in between.seen


class Recorded:
    """A proof, one message after the other; ``change`` says what somebody between makes of the first two."""

    def __init__(self, asks: bool, must: bool) -> None:
        self.hello = auth._HEADER.pack(auth._MAGIC, auth._VERSION, 1, asks) + bytes(32)
        self.proof = ServerProof(SECRET, "the client", must)
        self.answer = self.proof.feed(self.hello)

    def finish(self) -> None:
        self.proof.feed(auth._mac(SECRET, 1, self.hello, self.answer[:40]))


@pytest.mark.parametrize(("asks", "must", "encrypted"), [(False, False, 0), (True, False, 1), (True, True, 1)])
def test_it_is_encrypted_if_the_client_asks_for_it(asks: bool, must: bool, encrypted: int) -> None:
    recorded = Recorded(asks, must)
    assert recorded.answer[6] == encrypted
    recorded.finish()
    assert recorded.proof.done and bool(recorded.proof.key) == asks


def test_no_two_connections_have_the_same_key() -> None:
    proofs = [Recorded(True, True) for _ in range(2)]
    for each in proofs:
        each.finish()
    assert len({each.proof.key for each in proofs}) == 2 and len(proofs[0].proof.key) == 32


def test_who_does_not_encrypt_is_told_what_to_do_and_not_let_in(between: Between) -> None:
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(prove_as_server, between.server, SECRET, soon(), encrypt=True)
        with pytest.raises(AuthError, match=r"encrypts what is sent, and this process does not.*DDL_ENCRYPT=1") as told:
            prove_as_client(between.client, SECRET, soon())
        assert not told.value.closed  # to try again would be in vain
        between.client.shutdown(socket.SHUT_RDWR)
        with pytest.raises(AuthError, match="did not finish the handshake"):
            server.result(60)
    with pytest.raises(AuthError, match="does not encrypt, as this job does"):  # if he goes on nevertheless
        Recorded(False, True).finish()


@pytest.mark.parametrize("asks", [False, True])
def test_nobody_between_can_take_encryption_away(between: Between, asks: bool) -> None:
    """Nor ask for it in the client's name: what was asked for is a part of the proof."""
    between.flip.append(6)  # of the client's first message: whether it encrypts
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(prove_as_server, between.server, SECRET, soon())
        with pytest.raises(AuthError, match="does not know this job's secret"):
            prove_as_client(between.client, SECRET, soon(), encrypt=asks)
        between.client.shutdown(socket.SHUT_RDWR)
        with pytest.raises(AuthError):
            server.result(60)


def test_a_server_that_falls_silent_is_not_waited_for(between: Between) -> None:
    def prove_and_say_no_more() -> ServerProof:
        proof = ServerProof(SECRET, "x")
        while not proof.done:
            between.server.sendall(proof.feed(auth.read_exactly(between.server, proof.wanted, soon())))
        return proof

    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(prove_and_say_no_more)
        with pytest.raises(AuthError, match="deadline passed") as caught:
            prove_as_client(between.client, SECRET, time.monotonic() + 0.5, encrypt=True)
        assert caught.value.closed  # it may have been busy
        server.result(60)


@pytest.mark.parametrize("name", ["sendall", "sendmsg", "sendto", "recv_into", "recvmsg", "recvfrom", "dup"])
def test_nothing_passes_by_the_encryption(between: Between, name: str) -> None:
    client, _ = proved(between)
    with pytest.raises(NotImplementedError, match="pass by the encryption"):
        getattr(client, name)(b"in clear")
    with pytest.raises(NotImplementedError), client.makefile("rb") as file:
        file.read(1)
