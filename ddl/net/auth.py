"""The proof that both ends of a connection belong to one job, and the frames that follow it.

A job has a secret. Before an end uses anything that the other has sent, both prove that they know the secret: each
answers a challenge (HMAC-SHA256 over both ends' random nonces and the prover's role, so that nothing can be replayed or
reflected). All three messages have a fixed size, so a stranger decides neither how much is read nor how much memory is
used. In the proof both also agree whether all that follows is encrypted (encryption.py): it is if the client asks for
that. A server that must encrypt lets nobody in who does not ask.

``ServerProof`` is the server's half without any I/O: a selector loop feeds it (newcomers.py). A frame is a 4-byte
big-endian length and a JSON object in UTF-8.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import socket
import struct
from typing import Any, Dict, List, Optional

from ddl import clock
from ddl.errors import ConfigError, PeerLost, ProtocolError, RendezvousError
from ddl.net import encryption
from ddl.net.address import format_address

__all__ = [
    "FRAME_LIMIT",
    "AuthError",
    "FrameReader",
    "ServerProof",
    "encode_frame",
    "name_of",
    "name_of_job",
    "prove_as_client",
    "recv_frame",
    "send_frame",
]

MINIMUM_SECRET = 16  #: bytes
FRAME_LIMIT = 1 << 20  #: bytes of one frame's JSON text, unless the caller says otherwise

_HEADER = struct.Struct("!4sBB?x")  # magic, version, role of the sender, whether what follows is encrypted
_MAGIC = b"DDLa"
_VERSION = 2
_CLIENT, _SERVER = 1, 2
_NONCE = 32
_MAC = hashlib.sha256().digest_size
_HELLO = _HEADER.size + _NONCE  # client -> server
_CHALLENGE = _HEADER.size + _NONCE + _MAC  # server -> client
_LENGTH = struct.Struct("!I")
_KEY = b"ddl-2 key of a connection\0"  # the secret's other uses have other texts


class AuthError(ProtocolError):
    """The peer did not prove that it knows the job's secret.

    ``closed`` tells that the peer hung up or fell silent, rather than that it sent something wrong: a client may
    then try again (a busy server drops handshakes that take long).
    """

    def __init__(self, message: str, *, closed: bool = False) -> None:
        super().__init__(message)
        self.closed = closed


def check_secret(secret: bytes) -> bytes:
    """Return ``secret``; raise ConfigError if it is too short to be one."""
    if len(secret) < MINIMUM_SECRET:
        raise ConfigError(
            f"the job secret has {len(secret)} bytes, but at least {MINIMUM_SECRET} are needed; "
            "DDL_SECRET is their hexadecimal form"
        )
    return bytes(secret)


def name_of_job(secret: bytes) -> str:
    """Return what tells the job with this secret from others, and shows nothing of it; "" for one without."""
    return hmac.digest(secret, b"ddl name of a job", "sha256")[:8].hex() if secret else ""


def _mac(secret: bytes, role: int, hello: bytes, answer: bytes) -> bytes:
    """Return the proof by ``role``: over all that both have said before it."""
    return hmac.digest(secret, bytes([role]) + hello + answer, "sha256")


def _key(secret: bytes, hello: bytes, answer: bytes) -> bytes:
    return hmac.digest(secret, _KEY + hello + answer, "sha256")


def _check_header(message: bytes, role: int, peer: str) -> bool:
    """Return whether the sender encrypts. ``AuthError`` if it is none of ours."""
    magic, version, sender, encrypts = _HEADER.unpack_from(message)
    if magic != _MAGIC or sender != role:
        raise AuthError(f"{peer} does not speak DDL's handshake; is its address right, or is it another program?")
    if version != _VERSION:
        raise AuthError(
            f"{peer} speaks version {version} of DDL's handshake, this process version {_VERSION}; "
            "install the same DDL everywhere"
        )
    return bool(encrypts)


class ServerProof:
    """The server's half of the handshake as a state machine without I/O. Used by one thread.

    Read at most ``wanted`` bytes from the peer, pass them to ``feed`` and send what it returns, until ``done``. Then
    all that follows is encrypted with ``key``, if there is one. ``encrypt``: there must be.
    """

    def __init__(self, secret: bytes, peer: str, encrypt: bool = False) -> None:
        self._secret = check_secret(secret)
        self._peer = peer
        self._encrypt = encrypt
        self._buffer = b""
        self._hello = b""  # what the client said first
        self._asked = False
        self._answer = b""
        self.done = False
        self.key = b""

    @property
    def wanted(self) -> int:
        """How many bytes are missing; bytes beyond them belong to whatever follows the handshake."""
        return (_MAC if self._answer else _HELLO) - len(self._buffer)

    def feed(self, data: bytes) -> bytes:
        """Take what the client sent; return what it must be sent. Raises AuthError if it is a stranger."""
        self._buffer += data
        if self.done or self.wanted > 0:
            return b""
        message, self._buffer = self._buffer, b""
        if not self._answer:
            self._asked = _check_header(message, _CLIENT, self._peer)
            self._hello = message
            encrypts = self._asked or self._encrypt
            self._answer = _HEADER.pack(_MAGIC, _VERSION, _SERVER, encrypts) + os.urandom(_NONCE)
            return self._answer + _mac(self._secret, _SERVER, self._hello, self._answer)
        if not hmac.compare_digest(message, _mac(self._secret, _CLIENT, self._hello, self._answer)):
            raise AuthError(f"{self._peer} does not know this job's secret; refused")
        if self._encrypt and not self._asked:  # it was told, and should have gone
            raise AuthError(f"{self._peer} does not encrypt, as this job does (DDL_ENCRYPT=1); refused")
        self.key = _key(self._secret, self._hello, self._answer) if self._asked else b""
        self.done = True
        return b""


def prove_as_client(
    sock: socket.socket, secret: bytes, deadline: float, *, encrypt: bool = False, read_ahead: bool = False
) -> socket.socket:
    """Run the client's half on a connected socket until ``deadline`` (``clock.now``); AuthError if it fails.

    Return the socket to use from then on: ``sock``, or, to ``encrypt``, one that takes it over (``EncryptedSocket``).
    ``read_ahead``: see ``encryption.begin``.
    """
    peer = name_of(sock)
    check_secret(secret)
    hello = _HEADER.pack(_MAGIC, _VERSION, _CLIENT, encrypt) + os.urandom(_NONCE)
    _handshake_write(sock, hello, deadline, peer)
    challenge = _handshake_read(sock, _CHALLENGE, deadline, peer)
    encrypts = _check_header(challenge, _SERVER, peer)
    answer, proof = challenge[:-_MAC], challenge[-_MAC:]
    if not hmac.compare_digest(proof, _mac(secret, _SERVER, hello, answer)):
        raise AuthError(f"{peer} does not know this job's secret (DDL_SECRET); is it the store of another job?")
    if encrypts != encrypt:
        raise AuthError(
            f"{peer} encrypts what is sent, and this process does not: start all by ddlrun --encrypt, or set "
            "DDL_ENCRYPT=1 in all processes of the job"
        )
    _handshake_write(sock, _mac(secret, _CLIENT, hello, answer), deadline, peer)
    if not encrypt:
        return sock
    session = encryption.begin(sock, False, _key(secret, hello, answer), read_ahead=read_ahead)
    try:
        while not session.shake_hands():
            _await(sock, select.POLLOUT if session.unsent else select.POLLIN, deadline)
    except (ProtocolError, OSError) as error:
        closed = session.closed or isinstance(error, OSError)
        raise AuthError(f"the connection to {peer} cannot be encrypted: {error}", closed=closed) from error
    return encryption.EncryptedSocket(sock, session)


def encode_frame(message: Dict[str, Any], limit: int = FRAME_LIMIT) -> bytes:
    """Return the frame of a JSON object; ProtocolError if it is longer than any peer would accept."""
    text = json.dumps(message, separators=(",", ":")).encode()
    if len(text) > limit:
        raise ProtocolError(f"a message of {len(text)} bytes was to be sent; at most {limit} are allowed")
    return _LENGTH.pack(len(text)) + text


def _decode(text: bytes, peer: str) -> Dict[str, Any]:
    try:
        message = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{peer} sent a frame that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"{peer} sent a frame that is not a JSON object but {type(message).__name__}")
    return message


def _check_length(header: bytes, limit: int, peer: str) -> int:
    length: int = _LENGTH.unpack(header)[0]
    if length > limit:
        raise ProtocolError(f"{peer} announced a frame of {length} bytes; at most {limit} are allowed")
    return length


class FrameReader:
    """Cuts a stream of bytes into frames, without I/O. Used by one thread."""

    def __init__(self, peer: str, limit: int = FRAME_LIMIT) -> None:
        self._peer = peer
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> List[Dict[str, Any]]:
        """Take bytes; return the messages that are complete. Raises ProtocolError on anything else."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            length = _check_length(bytes(self._buffer[: _LENGTH.size]), self._limit, self._peer)
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(_decode(bytes(self._buffer[_LENGTH.size : end]), self._peer))
            del self._buffer[:end]
        return messages


def send_frame(sock: socket.socket, message: Dict[str, Any], deadline: Optional[float] = None) -> None:
    """Send one frame. PeerLost if the peer is gone, RendezvousError if ``deadline`` passes first."""
    peer = name_of(sock)
    frame = encode_frame(message)
    try:
        write_all(sock, frame, deadline)
    except TimeoutError as error:
        raise RendezvousError(f"{peer} did not take a message before its deadline") from error
    except OSError as error:
        raise PeerLost(f"lost the connection to {peer} while sending: {error}") from error


def recv_frame(sock: socket.socket, deadline: float, limit: int = FRAME_LIMIT) -> Dict[str, Any]:
    """Receive one frame. PeerLost if the peer is gone, RendezvousError if ``deadline`` passes first."""
    peer = name_of(sock)
    try:
        length = _check_length(read_exactly(sock, _LENGTH.size, deadline), limit, peer)
        return _decode(read_exactly(sock, length, deadline), peer)
    except TimeoutError as error:
        raise RendezvousError(f"{peer} did not send a message before its deadline") from error
    except (EOFError, OSError) as error:
        raise PeerLost(f"lost the connection to {peer} while receiving: {error}") from error


def read_exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    """Read ``count`` bytes and none beyond. TimeoutError after ``deadline``, EOFError if the peer hangs up."""
    data = bytearray()
    while len(data) < count:
        try:  # before waiting: an encrypted socket may have something that the kernel does not know of
            piece = sock.recv(min(count - len(data), 1 << 16), socket.MSG_DONTWAIT)
        except BlockingIOError:
            _await(sock, select.POLLIN, deadline)
            continue
        if not piece:
            raise EOFError("connection closed by the peer")
        data += piece
    return bytes(data)


def write_all(sock: socket.socket, data: bytes, deadline: Optional[float]) -> None:
    """Write all of ``data``. TimeoutError after ``deadline`` (None: never)."""
    rest = memoryview(data)
    while rest:
        _await(sock, select.POLLOUT, deadline)
        try:
            rest = rest[sock.send(rest, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            continue


def _await(sock: socket.socket, event: int, deadline: Optional[float]) -> None:
    # poll, because select fails for descriptors beyond 1023; and not the socket's own timeout, because that would
    # change a property that the caller may rely on. Waiting in slices keeps a far deadline inside poll's range.
    poller = select.poll()
    poller.register(sock.fileno(), event)
    while True:
        remaining = 60.0 if deadline is None else deadline - clock.now()
        if remaining <= 0:
            raise TimeoutError("deadline passed")
        if poller.poll(max(1, int(min(remaining, 60.0) * 1000))):
            return


def _handshake_read(sock: socket.socket, count: int, deadline: float, peer: str) -> bytes:
    try:
        return read_exactly(sock, count, deadline)
    except (EOFError, OSError) as error:
        raise AuthError(f"{peer} did not finish the handshake: {error}", closed=True) from error


def _handshake_write(sock: socket.socket, data: bytes, deadline: float, peer: str) -> None:
    try:
        write_all(sock, data, deadline)
    except OSError as error:
        raise AuthError(f"{peer} did not finish the handshake: {error}", closed=True) from error


def name_of(sock: socket.socket) -> str:
    """Return the name of the other end for errors."""
    try:
        name = sock.getpeername()
    except OSError:
        return "the peer (already gone)"
    if not isinstance(name, tuple):
        return "the peer on a Unix socket"
    # A listener of both families shows IPv4 as ::ffff:10.1.0.1.
    return f"the peer at {format_address(name[0].replace('::ffff:', ''), name[1])}"
