"""Lines, prefixes, progress bars, junk, and a reader that is slow or gone; without processes."""

from __future__ import annotations

import os
import pty
import random
from pathlib import Path
from typing import List

import pytest

from ddl.launch.agent.output import BACKLOG_LIMIT, LONGEST_LINE, Sink, Stream, prefix_of
from ddl.launch.agent.tail import LINES


class Pipes:
    """A rank's pipe, a stream that reads it, and a pipe that the sink writes to."""

    def __init__(self, prefix: bytes = b"[0] ") -> None:
        reader, self.rank = os.pipe()
        self.terminal, writer = os.pipe()
        os.set_blocking(self.terminal, False)
        self.sink = Sink(writer)
        self.stream = Stream(os.fdopen(reader, "rb", buffering=0), self.sink, prefix)

    def close(self) -> None:
        self.stream.close()
        for fd in (self.terminal, self.sink.fd):
            os.close(fd)

    def shown(self) -> bytes:
        text = b""
        while self.sink.backlog:
            assert self.sink.write_some()
            text += os.read(self.terminal, 1 << 16)
        return text

    def show(self, *pieces: bytes, end: bool = True) -> bytes:
        text = b""
        for piece in pieces:
            os.write(self.rank, piece)
            assert self.stream.pump()
            text += self.shown()
        if end:
            os.close(self.rank)
            assert not self.stream.pump()
        text += self.shown()
        self.close()
        return text


CASES = {
    "a line": ([b"one\n"], b"[0] one\n"),
    "pieces of a line": ([b"o", b"n", b"e", b"\ntwo\n"], b"[0] one\n[0] two\n"),
    "the last line without an ending": ([b"one\ntwo"], b"[0] one\n[0] two\n"),
    "empty lines": ([b"\n\none\n\n"], b"[0] \n[0] \n[0] one\n[0] \n"),
    "a progress bar": ([b"10%\r20%\r", b"30%\r"], b"[0] 10%\r[0] 20%\r[0] 30%\r"),
    "a progress bar as tqdm draws it": ([b"\r10%", b"\r20%", b"\r30%\n"], b"[0] 10%\r[0] 20%\r[0] 30%\n"),
    "lines as on Windows": ([b"one\r\ntwo\r\n"], b"[0] one\r\n[0] two\r\n"),
    "such a line in two pieces": ([b"one\r", b"\ntwo\r", b"three\n"], b"[0] one\r\n[0] two\r[0] three\n"),
    "binary junk": ([b"\x00\xff\xfe\x1b[\n\x80"], b"[0] \x00\xff\xfe\x1b[\n[0] \x80\n"),
    "nothing": ([], b""),
}


@pytest.mark.parametrize("name", CASES)
def test_lines(name: str) -> None:
    pieces, expected = CASES[name]
    assert Pipes().show(*pieces) == expected


def test_without_prefix_only_the_last_ending_is_added() -> None:
    junk = random.Random(3).randbytes(30_000)
    pieces = [junk[i : i + 1000].replace(b"\r", b"") for i in range(0, len(junk), 1000)]
    text = b"".join(pieces)
    assert Pipes(b"").show(*pieces) == text + (b"" if text.endswith(b"\n") else b"\n")


def test_a_long_line_stays_whole() -> None:
    pieces = [b"x" * 50_000] * 20
    assert Pipes().show(*pieces, b"end\n") == b"[0] " + b"x" * 1_000_000 + b"end\n"


def test_a_very_long_line_is_passed_on_in_parts_between_characters() -> None:
    text = "äöü€𝄞".encode() * 180_000
    assert len(text) > 2 * LONGEST_LINE
    pieces = [text[i : i + 49_999] for i in range(0, len(text), 49_999)]
    pipes = Pipes()
    parts: List[bytes] = []
    pipes.sink.tap = parts.append
    assert pipes.show(*pieces, b"\n") == b"[0] " + text + b"\n"
    assert len(parts) == 3 and all(part.decode() for part in parts)
    assert [len(line) for line in pipes.stream.tail] == [len(text[:2000].decode(errors="replace"))]


def test_a_question_is_passed_on_and_goes_on_behind_itself() -> None:
    pipes = Pipes()
    os.write(pipes.rank, b"name? ")
    assert pipes.stream.pump() and pipes.stream.due is not None and pipes.shown() == b""
    pipes.stream.pass_part()
    assert pipes.shown() == b"[0] name? " and pipes.stream.due is None
    os.write(pipes.rank, b"thanks\nnext\n")
    assert pipes.stream.pump() and pipes.stream.due is None
    assert pipes.shown() == b"thanks\n[0] next\n" and pipes.stream.tail == ["name? thanks", "next"]
    os.close(pipes.rank)
    pipes.close()


def test_half_a_character_waits_for_the_rest() -> None:
    pipes = Pipes()
    os.write(pipes.rank, "né".encode()[:-1])
    assert pipes.stream.pump()
    pipes.stream.pass_part()
    assert pipes.shown() == b"[0] n"
    os.write(pipes.rank, "é".encode()[-1:] + b"?")
    assert pipes.stream.pump()
    pipes.stream.pass_part()
    assert pipes.shown() == "é?".encode()
    os.close(pipes.rank)
    assert not pipes.stream.pump() and pipes.shown() == b"\n"
    pipes.close()


def test_who_prints_behind_a_question_begins_a_line() -> None:
    pipes, other = Pipes(), object()
    for data, source in ((b"[0] name? ", pipes), (b"[1] hello\n", other), (b"thanks\n", pipes), (b"[1] bye\n", other)):
        pipes.sink.put(data, source)
    assert pipes.shown() == b"[0] name? \n[1] hello\nthanks\n[1] bye\n"
    os.close(pipes.rank)
    pipes.close()


def test_prefixes_are_aligned() -> None:
    assert [prefix_of(rank, 11) for rank in (0, 10)] == [b"[ 0] ", b"[10] "]
    assert prefix_of(0, 10) == b"[0] " == prefix_of(0, 1)


def tail_of(*pieces: bytes) -> List[str]:
    pipes = Pipes()
    pipes.show(*pieces)
    return pipes.stream.tail


def test_the_tail_keeps_the_last_lines() -> None:
    assert tail_of(b"".join(b"%d\n" % number for number in range(50))) == [str(n) for n in range(50 - LINES, 50)]
    assert tail_of(b"start\n", b"\r1%", b"\r2%", b"\r3%\n", b"err\xff") == ["start", "3%", "err\ufffd"]
    assert [len(line) for line in tail_of(b"x" * 5000)] == [2000]


def test_a_slow_reader_makes_the_queue_grow_and_nothing_block() -> None:
    pipes = Pipes()
    while pipes.sink.backlog < BACKLOG_LIMIT:
        os.write(pipes.rank, b"x" * 999 + b"\n")
        assert pipes.stream.pump()
    expected = pipes.sink.backlog
    assert len(pipes.shown()) == expected
    os.close(pipes.rank)
    pipes.close()


def test_a_reader_that_is_gone_is_noticed_and_forgotten() -> None:
    pipes = Pipes()
    os.close(pipes.terminal)
    pipes.terminal = os.dup(0)
    pipes.sink.put(b"one\n", pipes.stream)
    assert not pipes.sink.write_some()
    assert pipes.sink.backlog == 0
    pipes.sink.put(b"two\n", pipes.stream)
    assert pipes.sink.backlog == 0
    os.close(pipes.rank)
    pipes.close()


def test_a_file_gets_every_byte_as_it_was(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    file = open(tmp_path / "file", "wb", buffering=0)
    stream = Stream(os.fdopen(reader, "rb", buffering=0), None, file=file)
    data = b"one\r\n\r\x00\xff no ending"
    os.write(writer, data)
    assert stream.pump()
    assert (tmp_path / "file").read_bytes() == data  # at once: who looks on sees it
    os.close(writer)
    assert not stream.pump()
    stream.close()
    stream.close()
    assert (tmp_path / "file").read_bytes() == data
    assert stream.tail[-1] == "\x00\ufffd no ending"


def test_on_a_terminal_another_ranks_line_erases_the_rest_of_a_bar() -> None:
    leader, terminal = pty.openpty()
    try:
        sink, first, other = Sink(terminal), object(), object()
        for line, source in ((b"a long bar\r", first), (b"bar\r", first), (b"line\n", other), (b"line\n", first)):
            sink.put(line, source)
        while sink.backlog:
            assert sink.write_some()
        expected, shown = b"a long bar\rbar\r\x1b[Kline\r\nline\r\n", b""
        while len(shown) < len(expected):  # the terminal may hand over what was written in pieces
            shown += os.read(leader, 1000)
        assert shown == expected
    finally:
        os.close(leader)
        os.close(terminal)
