"""What the page is told of a job: records, each a dictionary with its kind ``k`` and ``t``, seconds since the begin.

``job``: command, process of ddlrun, hosts, and ranks at the begin. The first record.
``state``: all ranks, once in a second; ``COLUMNS`` are those of its rows. Texts that many rows share stand in ``texts``
    once, and rows have their places there. ``links``: from host, to host, bytes per second. ``rails``, where two hosts
    have several: from host, to host, own and far address, bytes per second.
``lines``: what ranks have printed: process, stream (1 or 2) and text of each line; ``left_out`` counts what is not
    there, as too much was printed.
``event``: a line of ddlrun's own, the verdict of the store, the end of a process.
``end``: the job has ended, with ddlrun's ``status``. The last record.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import Any, Deque, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from ddl.launch.agent.job_watch import JobNow, RankNow
from ddl.launch.ask.config import RunConfig
from ddl.records.sample import RankSample

__all__ = ["COLUMNS", "Record", "StateRecords", "encoded", "job_record"]

Record = Dict[str, Any]

VERSION = 1  #: of this format; a reader refuses others
COLUMNS = (
    *("rank", "number", "host", "pid", "state", "steps", "operations", "per_second", "waiting", "late", "sent_bytes"),
    *("call", "call_state", "awaited", "failure"),
)
_TEXTS = {"host", "state", "call", "call_state", "failure"}  # columns
_WINDOW = 5  # samples that rates of links are made of


def encoded(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line of JSON, without its end."""
    return json.dumps(record, separators=(",", ":")).encode()


def job_record(config: RunConfig, pid: int, began: float) -> Record:
    """Return the first record. ``began``: seconds since 1970."""
    sizes = [int(size) for size in dict(config.environ).get("DDL_DIMENSIONS", "").split("x") if size.isdigit()]
    return {
        **{"k": "job", "t": 0.0, "version": VERSION, "pid": pid, "began": began, "ranks": config.num_proc},
        "command": list(config.command),
        "hosts": list(config.placement.hosts),
        "hosts_per_rack": sizes[1] if len(sizes) > 2 else 0,
        "columns": COLUMNS,
        "output_dir": config.output_dir or "",
    }


class StateRecords:
    """Makes the records ``state``, of which each has rates that the one before is needed for."""

    def __init__(self, config: RunConfig) -> None:
        pairs = zip(config.placement.hosts, config.placement.ranks)
        self._names = {rank: host for host, ranks in pairs for rank in ranks}  # as the user has written them
        self._other_names: Dict[str, str] = {}  # by how hosts call themselves
        self._samples: Dict[int, Deque[RankSample]] = {}  # the last ones of each process

    def record(self, elapsed: float, now: JobNow, ranks: Sequence[RankNow]) -> Record:
        """Return the record of this moment."""
        hosts = {rank.sample.number: self._host(rank.sample) for rank in ranks}
        self._take(rank.sample for rank in ranks)
        texts: Dict[str, int] = {}
        rows = [_row(rank, hosts[rank.sample.number], texts) for rank in ranks]
        links = self._links(hosts)
        job = {name: _short(value) for name, value in vars(now).items()}
        known = any(len(samples) > 1 for samples in self._samples.values())
        job["sent_per_second"] = sum(links.values()) if known else None
        rates = {"links": links, "rails": self._rails(hosts)}
        shown = {
            name: sorted(
                [*(texts.setdefault(text, len(texts)) for text in place), rate] for place, rate in each.items()
            )
            for name, each in rates.items()
            if each or name == "links"
        }
        return {"k": "state", "t": round(elapsed, 2), "job": job, "texts": list(texts), "ranks": rows, **shown}

    def _take(self, ranks: Iterable[RankSample]) -> None:
        samples: Dict[int, Deque[RankSample]] = {}
        for sample in ranks:
            known = samples[sample.number] = self._samples.get(sample.number, deque(maxlen=_WINDOW))
            if known and known[-1].communicator != sample.communicator:
                known.clear()
            if not known or known[-1].taken < sample.taken:
                known.append(sample)
        self._samples = samples

    def _host(self, sample: RankSample) -> str:
        """Return the name of its host: the user's, also for processes that come later."""
        name = self._names.get(sample.number)
        if name is None:
            return self._other_names.get(sample.host, sample.host)
        self._other_names.setdefault(sample.host, name)
        return name

    def _windows(self) -> Iterator[Tuple[RankSample, RankSample, float]]:
        """Yield the first and the last sample of each process, and the seconds between them."""
        for samples in self._samples.values():
            seconds = samples[-1].taken - samples[0].taken
            if seconds > 0:
                yield samples[0], samples[-1], seconds

    def _links(self, hosts: Mapping[int, str]) -> Dict[Tuple[str, ...], int]:
        """Return bytes per second from host to host, over the last seconds; also of a host to itself."""
        links: Dict[Tuple[str, ...], float] = {}
        for first, last, seconds in self._windows():
            before = dict(first.sent_to)
            for number, count in last.sent_to:
                rate = (count - before.get(number, 0)) / seconds
                if rate > 0 and number in hosts:
                    pair = hosts[last.number], hosts[number]
                    links[pair] = links.get(pair, 0.0) + rate
        return {pair: round(rate) for pair, rate in links.items()}

    def _rails(self, hosts: Mapping[int, str]) -> Dict[Tuple[str, ...], int]:
        """Return the same by host, host, own and far address, where two hosts have several pairs of addresses."""
        at = {own: hosts[last.number] for _, last, _ in self._windows() for own, _, _ in last.rails}
        rails: Dict[Tuple[str, ...], float] = {}
        for first, last, seconds in self._windows():
            before = {(own, far): count for own, far, count in first.rails}
            for own, far, count in last.rails:
                more = max(0, count - before.get((own, far), count))  # less: a connection has been closed
                if far in at and at[own] != at[far]:
                    place = at[own], at[far], own, far
                    rails[place] = rails.get(place, 0.0) + more / seconds
        pairs = Counter(place[:2] for place in rails)
        return {place: round(rate) for place, rate in rails.items() if pairs[place[:2]] > 1}


def _row(rank: RankNow, host: str, texts: Dict[str, int]) -> List[Any]:
    """Return the values of a rank, in the order of ``COLUMNS``; a text is its place in ``texts``."""
    values = {**vars(rank.sample), **vars(rank), "host": host}
    return [texts.setdefault(values[c], len(texts)) if c in _TEXTS else _short(values[c]) for c in COLUMNS]


def _short(value: Any) -> Any:
    """Return a number with as many digits as anybody reads."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
