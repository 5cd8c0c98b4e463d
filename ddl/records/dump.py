"""The dump of a rank: what it has recorded, and what the kernel and its launcher know of its process. One JSON file.

``ddl dump`` and ``ddlrun`` write it, ``ddl blame`` reads it. The clock of ``taken`` and of all times in the record is
CLOCK_MONOTONIC of the rank's host, in seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from ddl.errors import ProtocolError
from ddl.records.connections import ConnectionView
from ddl.records.layout import CommunicatorRecord, LaneRecord, ProcessRecord, RecordedOperation, StepsRecord

__all__ = [
    *("FORMAT", "JOB_FILE", "JobEnd", "ProcessView", "RankDump"),
    *("dump_message", "end_message", "file_name", "parse_dump", "parse_end"),
]

FORMAT = 4
JOB_FILE = "job.json"  #: in the same folder, by the launcher: ``end_message``


@dataclass(frozen=True)
class ProcessView:
    """What the kernel says of a process."""

    pid: int
    state: str  #: as ``process_state`` returns it: "runs", "sleeps", "is stopped", … "has ended"
    waits_in: str = ""  #: the function of the kernel in which its main thread sleeps; empty: none, or not to be read
    cpu_seconds: Optional[float] = None  #: that all its threads have used; None if it has ended
    run_delay: Optional[float] = None  #: seconds that its main thread was ready to run and had no processor
    throttled: float = 0.0  #: seconds in which its control group had used up its share of processors (``cpu.max``)
    #: The kernel's words, if it has killed the process for want of memory. Empty: it has not. None: it does not tell.
    out_of_memory: Optional[str] = None


@dataclass(frozen=True)
class RankDump:
    """All that is known of a rank's process at the time ``taken``."""

    taken: float
    process: ProcessView
    record: ProcessRecord
    exit: Optional[int] = None  #: its status, or minus the number of the signal; None: it runs, or nobody knows
    stopped: bool = False  #: its launcher had asked it to end
    stacks: str = ""  #: of its Python threads, as ``faulthandler`` writes them; empty: there are none to be had
    connections: Tuple[ConnectionView, ...] = ()  #: of TCP, that have moved a MiB or more

    @property
    def rank(self) -> int:
        """Its number in the job; -1 before ``ddl.init``."""
        return int(self.record.identity.get("rank", -1))

    @property
    def number(self) -> int:
        """The number of its process, which is the rank that it had at first; ranks change in elastic jobs."""
        return int(self.record.identity.get("number", self.rank))

    @property
    def host(self) -> str:
        """The name of its host, as the job knows it."""
        return str(self.record.identity.get("host", ""))


@dataclass(frozen=True)
class JobEnd:
    """How a job has ended, as its launcher knows it."""

    size: int  #: ranks
    verdict: Optional[Mapping[str, Any]] = None  #: the store's first one: ``kind``, ``culprit``, ``reason``
    first: Optional[int] = None  #: the rank in which the failure began, if it is a rank
    #: By rank, in words; not of those that the launcher has ended.
    exits: Mapping[int, str] = dataclasses.field(default_factory=dict)
    last_lines: Mapping[int, Sequence[str]] = dataclasses.field(default_factory=dict)  #: on stderr, by rank
    launcher_lost: str = ""  #: why an agent has ended the ranks of its host: it has lost ddlrun. Empty: it has not


def file_name(dump: RankDump) -> str:
    """Return how the file of ``dump`` is called in a folder of one job: by the number in the prefix of its output."""
    return f"rank.{dump.number}.json" if dump.number >= 0 else f"process.{dump.process.pid}.json"


def dump_message(dump: RankDump) -> Dict[str, Any]:
    """Return ``dump`` as JSON takes it."""
    return {"format": FORMAT, **dataclasses.asdict(dump)}


def parse_dump(message: Mapping[str, Any]) -> RankDump:
    """Return the dump that ``dump_message`` has made a message of; ``ProtocolError`` if it is none."""
    with _errors_of("dump of a rank"):
        fields = _fields(message, "dump")
        fields["process"] = ProcessView(**fields["process"])
        fields["record"] = _process(fields["record"])
        fields["connections"] = tuple(ConnectionView(**entry) for entry in fields["connections"])
        return RankDump(**fields)


def end_message(end: JobEnd) -> Dict[str, Any]:
    """Return ``end`` as JSON takes it."""
    return {"format": FORMAT, **dataclasses.asdict(end)}


def parse_end(message: Mapping[str, Any]) -> JobEnd:
    """Return what ``end_message`` has made a message of; ``ProtocolError`` if it is none."""
    with _errors_of("end of a job"):
        fields = _fields(message, "end of a job")
        for name in ("exits", "last_lines"):  # JSON has made text of the ranks
            fields[name] = {int(rank): value for rank, value in fields[name].items()}
        return JobEnd(**fields)


@contextlib.contextmanager
def _errors_of(what: str) -> Iterator[None]:
    """Raise ``ProtocolError`` for whatever is wrong with a message that should be a ``what``."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"this is no {what}: {type(error).__name__}: {error}") from error


def _fields(message: Mapping[str, Any], what: str) -> Dict[str, Any]:
    if message["format"] != FORMAT:
        raise ProtocolError(f"the {what} has format {message['format']}, this DDL reads format {FORMAT}")
    return {name: value for name, value in message.items() if name != "format"}


def _process(fields: Mapping[str, Any]) -> ProcessRecord:
    communicators = tuple(_communicator(entry) for entry in fields["communicators"])
    steps = StepsRecord(fields["steps"]["count"], tuple(fields["steps"]["ended"]))
    return ProcessRecord(**{**fields, "communicators": communicators, "steps": steps})


def _communicator(fields: Mapping[str, Any]) -> CommunicatorRecord:
    sent = tuple((messages, size) for messages, size in fields["sent"])
    rest = {
        "ranks": tuple(fields["ranks"]),
        "lanes": {name: LaneRecord(**lane) for name, lane in fields["lanes"].items()},
        "sent": sent,
        "collectives": _operations(fields["collectives"]),
        "messages": _operations(fields["messages"]),
    }
    return CommunicatorRecord(**{**fields, **rest})


def _operations(entries: Any) -> Tuple[RecordedOperation, ...]:
    return tuple(RecordedOperation(**entry) for entry in entries)
