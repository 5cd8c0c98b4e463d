"""Progress: plain lines where there is no terminal, a bar on one, and what is left."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
from typing import List

import pytest

from ddl.tools.progress import Progress, remaining_text

END = "the end"  # written to the terminal last


def test_what_is_left_in_words() -> None:
    seconds = [0.0, 40.2, 89, 91, 3600, 7500]
    assert [remaining_text(each) for each in seconds] == [
        "about 1 s left",
        "about 40 s left",
        "about 89 s left",
        "about 2 min left",
        "about 60 min left",
        "about 2 h 5 min left",
    ]


def lines(capsys: pytest.CaptureFixture[str]) -> List[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return str(err).splitlines()


class Clock:
    """The time as ``Progress`` sees it."""

    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("ddl.clock.now", lambda: clock.now)
    return clock


def test_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress(3) as progress:
        progress.step("one")
        clock.now = 5.0
        progress.step("two")
        clock.now = 14.0
        progress.step("three", 4)
    said = lines(capsys)
    assert said == ["one", "two, about 10 s left", "three, about 14 s left"]


def test_what_is_over_soon_says_nothing(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress(3, after=60) as progress:
        for what in "abc":
            clock.now += 19.0
            progress.step(what)
        assert lines(capsys) == []
        clock.now += 4.0
        progress.step("d")
    assert lines(capsys) == ["d"]


def test_a_time_that_is_known(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress(seconds=100, name="ddl tune") as progress:
        progress.step("measuring")
    assert lines(capsys) == ["ddl tune: measuring, about 2 min left"]


def read_until(fd: int, end: str) -> str:
    """Read what ``fd``, a terminal, shows until ``end``: it may hand over in pieces what was written at once."""
    text = ""
    while not text.endswith(end):
        assert select.select([fd], [], [], 100)[0], f"nothing after {text!r}"
        text += os.read(fd, 1 << 16).decode()
    return text


@pytest.mark.parametrize("installed", [True, False])
def test_on_a_terminal(installed: bool, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    if installed:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb") as screen:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress(2) as progress:
            progress.step("first")
            clock.now = 1.0
            progress.note("a note")
            progress.step("second")
        terminal.write(END)
        terminal.flush()
        shown = read_until(screen.fileno(), END)
    if installed:
        assert "second:  50%" in shown and "1/2" in shown and "a note\r\n" in shown
    else:
        assert shown.replace("\r", "") == "first\na note\nsecond, about 1 s left\n" + END
