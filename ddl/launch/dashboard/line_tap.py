"""Listens to what goes through ddlrun's sinks: the last lines of each rank, and ddlrun's own.

A rank may print megabytes in a second, so only the last lines of what comes at once are looked at.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Tuple

from ddl.launch.agent.output import ERASE

__all__ = ["LineTap", "TappedLines"]

_EACH = 20  # lines of a rank that are kept in a second
_ALL = 200  # lines of all ranks
_WIDTH = 400  # bytes of a line
_OWN = b"ddlrun: "
_PREFIX = re.compile(rb"(?:\S+ )?\[ *(\d+)\] ")  # perhaps with the time before it

_Line = Tuple[int, int, str]  # process (-1: not known), stream, text


class TappedLines(NamedTuple):
    """What has come since the last time."""

    lines: List[_Line]
    left_out: int
    own: List[str]  #: ddlrun's


class LineTap:
    """Used by ddlrun's loop alone. ``prefix``: the lines of ranks begin with their number."""

    def __init__(self, *, prefix: bool) -> None:
        self._prefix = prefix
        self._lines: Dict[Tuple[int, int], Deque[str]] = {}
        self._bars: Dict[Tuple[int, int], bool] = {}  # whether the last line is to be written over
        self._left_out = 0
        self._own: Deque[str] = deque(maxlen=_ALL)

    def put(self, stream: int, data: bytes) -> None:
        """Take what a sink has taken: whole lines of one source."""
        if data.startswith(ERASE):  # the line about the job
            return
        pieces = data.rsplit(b"\n", _EACH + 1)
        if len(pieces) > _EACH + 1:
            self._left_out += pieces[0].count(b"\n") + 1
            del pieces[0]
        for number, piece in enumerate(pieces):
            text = piece.rstrip(b"\r").rpartition(b"\r")[2]  # of a progress bar: how it stands at last
            if text or number < len(pieces) - 1:
                self._add(stream, text, bar=number == len(pieces) - 1)

    def take(self) -> TappedLines:
        """Return what has come, and forget it."""
        kept = [(number, stream, text) for (number, stream), texts in self._lines.items() for text in texts]
        taken = TappedLines(kept[-_ALL:], self._left_out + max(0, len(kept) - _ALL), list(self._own))
        self._lines, self._left_out = {}, 0
        self._own.clear()
        return taken

    def _add(self, stream: int, line: bytes, *, bar: bool) -> None:
        match = _PREFIX.match(line) if self._prefix else None
        if match is None and line.startswith(_OWN):
            return self._own.append(line[len(_OWN) :][:_WIDTH].decode(errors="replace"))
        place = (-1 if match is None else int(match[1]), stream)
        texts = self._lines.setdefault(place, deque(maxlen=_EACH))
        if self._bars.get(place) and texts:
            texts.pop()
        elif len(texts) == _EACH:
            self._left_out += 1
        self._bars[place] = bar
        texts.append(line[match.end() if match is not None else 0 :][:_WIDTH].decode(errors="replace"))
