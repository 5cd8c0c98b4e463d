"""A connection whose records have checksums (csrc/wire/checksum_session.h), and somebody between who changes them."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Callable, Iterator, List

import pytest
from core.tls_wire import SECONDS, Wire, all_of

from ddl import _core
from ddl.errors import PeerLost

RECORD = 16 << 10
HEADER = 8  # length and sum
WRONG = "what came is not what was sent, as a checksum tells"


@pytest.fixture
def wire() -> Iterator[Wire]:
    with ExitStack() as stack:
        yield Wire(stack)


# --- the sum ---


def test_the_sum_is_that_of_others() -> None:
    """Of RFC 3720, B.4, and the usual check value."""
    for data, sum_of in [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ]:
        assert _core.crc32c(data) == _core.crc32c(data, by_table=True) == sum_of


def test_the_instruction_and_the_table_bring_the_same() -> None:
    """For all lengths about where the one sums three parts at once, and any cut of them."""
    draw = random.Random(7)
    data = draw.randbytes(3 * RECORD)
    lengths = [*range(0, 300), *range(6100, 6200), RECORD - 1, RECORD, RECORD + 1, len(data)]
    for length in lengths:
        start, cut = draw.randrange(8), draw.randrange(length + 1)
        piece = data[start : start + length]
        wanted = _core.crc32c(piece, by_table=True)
        assert _core.crc32c(piece) == wanted, length
        assert _core.crc32c(piece[cut:], _core.crc32c(piece[:cut])) == wanted, (length, cut)


# --- the session ---


def test_bytes_go_and_come_however_they_are_cut(wire: Wire) -> None:
    draw = random.Random(3)
    ends = [_core.ChecksumSession(sock.fileno()) for sock in (wire.client_side, wire.client)]
    for writer, reader in (ends, ends[::-1]):
        for size in (1, 7, 8, 9, RECORD - 1, RECORD, RECORD + 1, 100_000):
            data = draw.randbytes(size)
            rest, came = data, b""
            while rest or writer.unsent or len(came) < size:
                rest = rest[writer.write(rest[: draw.randrange(1, 40_000)] if rest else b"") :]
                came += reader.read(draw.randrange(1, 30_000))
            assert came == data


def sent_by(wire: Wire, *pieces: bytes) -> List[bytes]:
    """Return the records in which they go; these do not go on."""
    session = _core.ChecksumSession(wire.client.fileno())
    records = []
    for piece in pieces:
        assert session.write(piece) == len(piece) and not session.unsent
        records.append(wire.client_side.recv(HEADER + len(piece), socket.MSG_WAITALL))
    return records


def test_a_flipped_bit_anywhere_is_noticed_and_nothing_of_its_record_is_given(wire: Wire) -> None:
    first, second = sent_by(wire, b"the first", b"the second one")
    for bit in range(8 * len(second)):
        changed = bytearray(second)
        changed[bit // 8] ^= 1 << bit % 8
        near, far = socket.socketpair()
        with near, far:
            far.sendall(first + changed + bytes(2 * RECORD))  # a longer length finds bytes, too
            session = _core.ChecksumSession(near.fileno())
            assert all_of(session, near, 9) == b"the first"
            for _ in range(2):  # and it stays so
                with pytest.raises(PeerLost, match=WRONG):
                    session.read(100)
            assert not session.closed and session.error == 0


def swapped(records: List[bytes]) -> bytes:
    return records[1] + records[0]


def repeated(records: List[bytes]) -> bytes:
    return records[0] + records[0]


def dropped(records: List[bytes]) -> bytes:
    return records[1]


def shortened(records: List[bytes]) -> bytes:
    return (len(records[0]) - HEADER - 1).to_bytes(4, "little") + records[0][4:-1] + records[1]


def emptied(records: List[bytes]) -> bytes:
    return bytes(HEADER) + records[0]


@pytest.mark.parametrize("change", [swapped, repeated, dropped, shortened, emptied])
def test_records_have_an_order_and_an_end(wire: Wire, change: Callable[[List[bytes]], bytes]) -> None:
    wire.server_side.sendall(change(sent_by(wire, b"the first", b"the second one")))
    wire.server_side.shutdown(socket.SHUT_WR)
    session = _core.ChecksumSession(wire.server.fileno())
    wire.server.settimeout(SECONDS)
    with pytest.raises(PeerLost, match=WRONG):
        while True:
            assert session.read(1 << 16) in (b"", b"the first")


def test_an_end_is_one(wire: Wire) -> None:
    """Also amid a record, of which nothing is given."""
    for cut in (0, 3, HEADER, HEADER + 4):
        near, far = socket.socketpair()
        with near:
            with far:
                far.sendall(sent_by(wire, b"the first")[0] + sent_by(wire, b"the first")[0][:cut])
            session = _core.ChecksumSession(near.fileno())
            assert session.read(100) == b"the first"
            with pytest.raises(PeerLost, match="closed by the peer"):
                session.read(100)
            assert session.closed
