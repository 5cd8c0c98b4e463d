"""One encrypted connection: what passes by on the way, and what somebody there may do to it."""

from __future__ import annotations

import contextlib
import os
import select
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Callable, List

import pytest
from core.tls_wire import HEADER, SECONDS, Wire, all_of, flipped, shaken

from ddl import _core
from ddl.errors import PeerLost, ProtocolError


def test_what_is_written_is_read_and_nobody_between_sees_it(wire: Wire) -> None:
    client, server = wire.shake_hands()
    for text in (b"a gradient " * 3, os.urandom(16 << 10), b"b"):
        assert client.write(text) == len(text)
        record = wire.record()
        assert record[0] == 23 and 0 < len(record) - HEADER - len(text) < 64
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


@pytest.mark.parametrize(
    ("path", "words"),
    [("/nowhere/libssl.so", "DDL_OPENSSL=/nowhere/libssl.so: "), ("libm.so.6", "has no TLS_method")],
)
def test_a_library_that_is_of_no_use_is_named(path: str, words: str) -> None:
    code = f"from ddl import _core\n_core.load_openssl({path!r})"  # once per process
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "ResourceError" in done.stderr and words in done.stderr
