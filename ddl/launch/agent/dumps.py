"""Where ddlrun keeps the dumps of a job: a folder for each dump; only the latest stay.

Dumps come from agents in pieces, since one message must not be long (``pieces_of``, ``DumpPieces``).
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from ddl.errors import ConfigError, ProtocolError
from ddl.records.dump import JOB_FILE, JobEnd, RankDump, dump_message, end_message, file_name, parse_dump

__all__ = ["DumpPieces", "KeptDumps", "dump_folder", "keep_dumps", "pieces_of", "write_dumps"]

_NOTHING_RECORDED = "no rank has recorded anything: the program has not called ddl.init yet, or does not use DDL"
_KEPT = 20  # folders
_PIECE = 256 << 10  # characters of one message
_LARGEST = 64 << 20  # bytes of a dump


def dump_folder(given: Optional[str], environ: Mapping[str, str]) -> Path:
    """Return the folder for all jobs: ``given`` (--dump-dir), or the user's. ConfigError if there is no HOME."""
    if given is not None:
        return Path(given)
    state = environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(state) if state else Path.home() / ".local" / "state") / "ddl" / "dumps"
    except RuntimeError as error:
        raise ConfigError(f"there is no directory for dumps: {error}; set HOME, or say --dump-dir") from error


class KeptDumps(NamedTuple):
    """Where the dumps of a job are."""

    folder: Optional[Path]  #: None: there are none, or they cannot be written
    lines: List[str]  #: what to tell the user: who is to blame, and where they are, or why there are none

    def print(self) -> None:
        """Tell the user, when nothing else is printed any more."""
        print(*(f"ddlrun: {line}" for line in self.lines), sep="\n", file=sys.stderr)

    @property
    def message(self) -> Dict[str, str]:
        """The answer to somebody who has asked for them (requests.py)."""
        return {"folder": "" if self.folder is None else str(self.folder.resolve()), "text": "\n".join(self.lines)}


def keep_dumps(given: Optional[str], dumps: Sequence[RankDump], end: JobEnd) -> KeptDumps:
    """Write the dumps of a job, if there are any."""
    if not dumps:
        return KeptDumps(None, [_NOTHING_RECORDED])
    words = _verdict(dumps, end)
    try:
        path = write_dumps(dump_folder(given, os.environ), dumps, end)
    except (ConfigError, OSError) as error:
        return KeptDumps(None, [*words, f"what the ranks did last cannot be written: {error}"])
    return KeptDumps(path, [*words, f"to see what each rank did last, and who is to blame: ddl blame {path}"])


def _verdict(dumps: Sequence[RankDump], end: JobEnd) -> List[str]:
    """Return who is to blame, if the launcher does not say it anyway: it tells which process has ended, and how."""
    from ddl.blame.finding import last_words  # a job that goes well needs none of this
    from ddl.blame.judge import blame

    findings = blame(dumps, end)
    if not findings or findings[0].kind in ("dead", "unknown"):
        return []
    # What all ranks were told of stands there as the rank has said it that ended first.
    shown = {_unsigned(line) for line in end.last_lines.get(-1 if end.first is None else end.first, ())}
    return [words for words in last_words(findings) if _unsigned(words) not in shown]


def _unsigned(line: str) -> str:
    """Return what an error says, without which rank says so."""
    return re.sub(r"\[rank \d+/\d+[^]]*\] ", "", line.strip())


def write_dumps(folder: Path, dumps: Sequence[RankDump], end: JobEnd) -> Path:
    """Write the dumps of a job into a new folder below ``folder``, and return it. OSError if that is impossible."""
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time_ns() // 1000
    path = folder / f"{time.strftime('%Y-%m-%d.%H-%M-%S', time.localtime(now // 1e6))}.{now % 10**6:06}.{os.getpid()}"
    path.mkdir()
    for dump in dumps:
        (path / file_name(dump)).write_text(json.dumps(dump_message(dump), indent=1), encoding="utf-8")
    (path / JOB_FILE).write_text(json.dumps(end_message(end), indent=1), encoding="utf-8")
    _forget_old(folder)
    return path


def _forget_old(folder: Path) -> None:
    """Keep the last folders that look like ours. Another ddlrun may be doing the same."""
    ours = sorted((path for path in folder.glob("*/" + JOB_FILE)), key=lambda path: path.parent.name)
    for path in ours[:-_KEPT]:
        shutil.rmtree(path.parent, ignore_errors=True)


def pieces_of(dump: RankDump) -> Iterator[Dict[str, Any]]:
    """Yield the messages ``record`` that carry ``dump``."""
    text = base64.b85encode(zlib.compress(json.dumps(dump_message(dump)).encode(), 1)).decode()
    for start in range(0, len(text), _PIECE):
        last = start + _PIECE >= len(text)
        yield {"type": "record", "last": last, "data": text[start : start + _PIECE]}


class DumpPieces:
    """Puts the dumps of the ranks of a host together again."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._begun: List[str] = []

    def add(self, message: Mapping[str, Any]) -> Optional[RankDump]:
        """Return the dump whose last piece this is. ``ProtocolError`` if the pieces make none."""
        self._begun.append(str(message["data"]))
        if not message["last"]:
            return None
        pieces, self._begun = self._begun, []
        try:
            data = zlib.decompressobj().decompress(base64.b85decode("".join(pieces)), _LARGEST)
            return parse_dump(json.loads(data))
        except (ValueError, zlib.error) as error:
            raise ProtocolError(f"host {self._host} sent a dump that cannot be read: {error}") from error
