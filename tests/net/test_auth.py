"""The handshake: both sides prove the secret, and whatever a stranger sends is refused. Frames are bounded."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from typing import Callable, Iterator, List, Tuple

import pytest
from proving import prove_as_server

from ddl.errors import ConfigError, PeerLost, ProtocolError, RendezvousError
from ddl.net import auth
from ddl.net.auth import AuthError, FrameReader, ServerProof, encode_frame, recv_frame, send_frame

Pair = Tuple[socket.socket, socket.socket]


def in_seconds(seconds: float) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def secret() -> bytes:
    return bytes(range(32))


@pytest.fixture(params=["unix", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    if request.param == "unix":
        client, other = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            other, _ = listener.accept()
    with client, other:
        yield client, other


def both(client: Callable[[], None], server: Callable[[], None]) -> List[BaseException]:
    """Run both sides; return what they raised."""
    raised: List[BaseException] = []

    def run(side: Callable[[], None]) -> None:
        try:
            side()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, args=(server,))
    thread.start()
    run(client)
    thread.join(100)
    assert not thread.is_alive()
    return raised


def test_same_secret_is_accepted_and_nothing_more_is_read(pair: Pair, secret: bytes) -> None:
    client_socket, other = pair

    def client() -> None:
        auth.prove_as_client(client_socket, secret, in_seconds(60))
        client_socket.sendall(b"what follows")

    assert both(client, lambda: prove_as_server(other, secret, in_seconds(60))) == []
    assert other.recv(100) == b"what follows"


def test_other_secret_is_refused_by_both_sides(pair: Pair, secret: bytes) -> None:
    client_socket, other = pair

    def client() -> None:
        try:
            auth.prove_as_client(client_socket, bytes(32), in_seconds(60))
        finally:
            client_socket.close()

    raised = both(client, lambda: prove_as_server(other, secret, in_seconds(60)))
    assert [type(error) for error in raised] == [AuthError, AuthError]
    assert "does not know this job's secret" in str(raised[0]) + str(raised[1])


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\n\r\n" * 4, bytes(40), b"DDLa\x02\x02" + bytes(34), b"DDLa\x63\x01" + bytes(34)]
)
def test_server_refuses_what_is_no_handshake(pair: Pair, secret: bytes, junk: bytes) -> None:
    client, other = pair
    client.sendall(junk)
    with pytest.raises(AuthError) as caught:
        prove_as_server(other, secret, in_seconds(60))
    assert not caught.value.closed
    assert other.fileno() >= 0  # whoever opened it closes it


def test_client_refuses_a_server_of_another_kind(pair: Pair, secret: bytes) -> None:
    client, other = pair
    other.sendall(b"220 mail.example.org ESMTP ready; have a nice day, whoever you are, and be brief. " * 2)
    with pytest.raises(AuthError, match="does not speak DDL"):
        auth.prove_as_client(client, secret, in_seconds(60))


def test_a_reflected_handshake_is_refused(pair: Pair, secret: bytes) -> None:
    # A stranger that sends a server's own words back has no proof, because roles are part of what is proved.
    client, other = pair

    def mirror() -> None:
        other.sendall(auth.read_exactly(other, 40, in_seconds(60)) + bytes(32))

    raised = both(lambda: auth.prove_as_client(client, secret, in_seconds(60)), mirror)
    assert [type(error) for error in raised] == [AuthError]
    proof = ServerProof(secret, "a stranger")
    challenge = proof.feed(b"DDLa\x02\x01\x00\x00" + os.urandom(32))
    with pytest.raises(AuthError, match="secret"):
        proof.feed(challenge[-32:])  # the server's own proof


def test_a_recorded_handshake_is_refused(secret: bytes) -> None:
    hello = b"DDLa\x02\x01\x00\x00" + bytes(32)
    first, second = ServerProof(secret, "x"), ServerProof(secret, "x")
    challenge = first.feed(hello)
    recorded = auth._mac(secret, 1, hello, challenge[:40])
    assert first.feed(recorded) == b"" and first.done
    second.feed(hello)
    with pytest.raises(AuthError):
        second.feed(recorded)
    assert not second.done


def test_the_handshake_may_come_in_single_bytes(secret: bytes) -> None:
    proof = ServerProof(secret, "x")
    hello = b"DDLa\x02\x01\x00\x00" + bytes(32)
    answers = [proof.feed(hello[i : i + 1]) for i in range(40)]
    assert [len(answer) for answer in answers] == [0] * 39 + [72]
    assert proof.wanted == 32
    for byte in auth._mac(secret, 1, hello, answers[-1][:40]):
        assert not proof.done
        proof.feed(bytes([byte]))
    assert proof.done


def test_silence_and_hanging_up_end_the_handshake(pair: Pair, secret: bytes) -> None:
    client, other = pair
    begin = time.monotonic()
    with pytest.raises(AuthError, match="deadline") as silent:
        prove_as_server(other, secret, in_seconds(0.05))
    assert time.monotonic() - begin > 0.04
    client.close()
    with pytest.raises(AuthError, match="closed") as gone:
        prove_as_server(other, secret, in_seconds(60))
    assert silent.value.closed and gone.value.closed


def test_a_short_secret_is_refused(pair: Pair) -> None:
    for prove in (auth.prove_as_client, prove_as_server):
        with pytest.raises(ConfigError, match="15 bytes"):
            prove(pair[0], bytes(15), in_seconds(1))


def test_frames_pass_unchanged(pair: Pair) -> None:
    client, other = pair
    message = {"text": "ä\ud800\x00", "list": [1, -2, 2**63, 1.5, None, True], "deep": {"": {}}}
    for _ in range(3):
        send_frame(client, message, in_seconds(60))
    for _ in range(3):
        assert recv_frame(other, in_seconds(60)) == message


def test_a_frame_longer_than_the_limit_takes_no_memory(pair: Pair) -> None:
    client, other = pair
    client.sendall(struct.pack("!I", 2**32 - 1))
    with pytest.raises(ProtocolError, match="4294967295 bytes"):
        recv_frame(other, in_seconds(60))
    with pytest.raises(ProtocolError, match="at most"):
        send_frame(client, {"text": "x" * auth.FRAME_LIMIT})


@pytest.mark.parametrize("text", [b"[1]", b"{", b"\xff\xfe", b"7", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(pair: Pair, text: bytes) -> None:
    client, other = pair
    client.sendall(struct.pack("!I", len(text)) + text)
    with pytest.raises(ProtocolError, match="not"):
        recv_frame(other, in_seconds(60))


def test_frames_have_deadlines_and_notice_the_end(pair: Pair) -> None:
    client, other = pair
    with pytest.raises(RendezvousError, match="deadline"):
        recv_frame(other, in_seconds(0.05))
    client.sendall(b"\x00\x00")
    client.close()
    with pytest.raises(PeerLost, match="closed"):
        recv_frame(other, in_seconds(60))
    with pytest.raises(PeerLost):
        for _ in range(100):  # the first ones may still fit into the kernel's buffer
            send_frame(other, {"text": "x" * 100_000}, in_seconds(60))


def test_sending_has_a_deadline(pair: Pair) -> None:
    client, _ = pair
    with pytest.raises(RendezvousError, match="deadline"):
        for _ in range(1000):
            send_frame(client, {"text": "x" * 1_000_000}, in_seconds(0.2))


def test_the_reader_cuts_a_stream_anywhere() -> None:
    messages = [{"number": number, "text": "x" * number} for number in range(20)]
    stream = b"".join(map(encode_frame, messages))
    for step in (1, 2, 3, 7, 64, len(stream)):
        reader = FrameReader("x")
        got = [m for i in range(0, len(stream), step) for m in reader.feed(stream[i : i + step])]
        assert got == messages
    with pytest.raises(ProtocolError, match="at most 10"):
        FrameReader("x", limit=10).feed(b"\x00\x00\x00\x0b")
