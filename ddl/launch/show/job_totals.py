"""What the processes of a job have done so far, as samples of its ranks show it, for ``/metrics``. No I/O, no clock.

The sums of a communicator begin at zero, and end with it. The totals here only grow, as long as the process exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Mapping, NamedTuple, Tuple

from ddl.records.layout import WORLDS
from ddl.records.sample import CommunicatorSums, RankSample

__all__ = ["JobCounters", "JobTotals", "ProcessSums", "RankTotals"]


class ProcessSums(NamedTuple):
    """What a process has done with several communicators. Seconds and bytes; where they overlap, time counts twice."""

    operations: int = 0  #: collectives that have ended
    sent_messages: int = 0
    sent_bytes: int = 0
    under_way: float = 0.0
    waited: float = 0.0

    def plus(self, other: CommunicatorSums) -> ProcessSums:
        """Return the sums with those of another communicator."""
        return ProcessSums(
            operations=self.operations + other.operations,
            sent_messages=self.sent_messages + sum(messages for _, messages, _ in other.sent),
            sent_bytes=self.sent_bytes + sum(size for _, _, size in other.sent),
            under_way=self.under_way + other.under_way,
            waited=self.waited + other.waited,
        )


@dataclass(frozen=True)
class RankTotals:
    """What a process has done."""

    rank: int  #: its last one
    process: int  #: its number in the job, which no other one ever has
    host: str
    steps: int
    paused: float  #: seconds
    #: With communicators of all ranks, the "world", one after the other; and with the "others", if it had any.
    sums: Mapping[str, ProcessSums]


@dataclass(frozen=True)
class JobTotals:
    """A job at a moment. Nobody changes it: threads may hand it to one another."""

    running: int = 0  #: ranks
    generation: int = 0
    late: Mapping[int, float] = field(default_factory=dict)  #: seconds by rank, of those that come late
    ranks: Tuple[RankTotals, ...] = ()
    all_links: Mapping[Tuple[str, str], int] = field(default_factory=dict)  #: bytes sent, by the two hosts

    @property
    def links(self) -> Dict[Tuple[str, str], int]:
        """Those between hosts that have ranks."""
        hosts = {rank.host for rank in self.ranks}
        return {link: size for link, size in self.all_links.items() if hosts.issuperset(link)}


class JobCounters:
    """Adds up the samples of all ranks. Used by one thread."""

    def __init__(self) -> None:
        self._processes: Dict[int, _ProcessCounters] = {}
        self._ranks: Dict[int, RankTotals] = {}
        self._generations: Dict[int, int] = {}
        self._hosts: Dict[int, str] = {}  # also of processes that have ended: the others have sent to them
        self._links: Dict[Tuple[str, str], int] = {}
        self._running = 0
        self._late: Dict[int, float] = {}

    def take(self, samples: Iterable[RankSample], running: int, late: Mapping[int, float]) -> None:
        """Take the next samples; ``running`` and ``late`` as ``JobWatch.now`` takes them."""
        self._running, self._late = running, dict(late)
        known = [sample for sample in samples if sample.number >= 0]  # else its process was just writing who it is
        for sample in known:
            counters = self._processes.setdefault(sample.number, _ProcessCounters())
            self._ranks[sample.number] = counters.take(sample)
            self._generations[sample.number] = sample.generation
        newcomers = any(sample.number not in self._hosts for sample in known)
        self._hosts.update({sample.number: sample.host for sample in known})
        # What others have sent to newcomers could not be told before.
        for number in list(self._processes) if newcomers else [sample.number for sample in known]:
            for host, size in self._processes[number].newly_sent(self._hosts):
                link = self._hosts[number], host
                self._links[link] = self._links.get(link, 0) + size

    def forget(self, number: int) -> None:
        """The process with this number has ended."""
        for kept in (self._processes, self._ranks, self._generations):
            kept.pop(number, None)

    def totals(self) -> JobTotals:
        """Return what the processes that are there have done.

        It is called for each message of a host, so it only copies: a reader sorts, and leaves out what it does not
        want.
        """
        return JobTotals(
            running=self._running,
            generation=max(self._generations.values(), default=0),
            late=self._late,
            ranks=tuple(self._ranks.values()),
            all_links=dict(self._links),
        )


class _ProcessCounters:
    """The sums of a process: of communicators that its record still shows, and of those from before.

    They are added again for each sample, instead of adding differences: so the first communicator's are exact.
    """

    def __init__(self) -> None:
        self._last = RankSample(-1, -1, "", 0, "", 0.0, -1)
        self._steps, self._paused = 0, 0.0  # of what the process was before, if a rank's program starts another one
        self._gone = {"world": ProcessSums()}
        self._present: Dict[int, CommunicatorSums] = {}
        self._told: Dict[int, Dict[str, int]] = {}  # bytes told by ``newly_sent``, by communicator and host
        self._settled: Dict[int, Tuple[Tuple[int, int, int], ...]] = {}  # ``sent`` of which all was told

    def take(self, sample: RankSample) -> RankTotals:
        """Return the sums with those of ``sample``."""
        last, self._last = self._last, sample
        if sample.pid != last.pid:
            self._steps += last.steps
            self._let_go(list(self._present))
        if sample.pid != last.pid or sample.paused < last.paused:  # ``init`` begins it anew
            self._paused += last.paused
        shown = {each.number: each for each in sample.communicators}
        self._let_go([number for number in self._present if number not in shown])
        for number, each in shown.items():
            self._present[number] = _later(self._present.get(number, each), each)
        sums = dict(self._gone)
        for each in self._present.values():
            sums[_kind(each)] = sums.get(_kind(each), ProcessSums()).plus(each)
        return RankTotals(
            rank=sample.rank,
            process=sample.number,
            host=sample.host,
            steps=self._steps + sample.steps,
            paused=self._paused + sample.paused,
            sums=sums,
        )

    def newly_sent(self, hosts: Mapping[int, str]) -> List[Tuple[str, int]]:
        """Return hosts, each with the bytes sent there that were not told before. ``hosts``: of processes.

        What was sent to a process whose host is not known yet is told later.
        """
        new: List[Tuple[str, int]] = []
        for number, each in self._present.items():
            if self._settled.get(number) == each.sent:
                continue
            by_host: Dict[str, int] = {}
            for to, _, size in each.sent:
                host = hosts.get(to, "")
                by_host[host] = by_host.get(host, 0) + size
            if "" in by_host:
                del by_host[""]
            else:
                self._settled[number] = each.sent
            told = self._told.get(number, {})
            new += [(host, size - told.get(host, 0)) for host, size in by_host.items()]
            self._told[number] = by_host
        return new

    def _let_go(self, numbers: List[int]) -> None:
        """Keep the sums of these communicators, which will not be seen any more."""
        for number in numbers:
            each = self._present.pop(number)
            self._told.pop(number, None)
            self._settled.pop(number, None)
            self._gone[_kind(each)] = self._gone.get(_kind(each), ProcessSums()).plus(each)


def _kind(sums: CommunicatorSums) -> str:
    return "others" if sums.number % WORLDS else "world"


def _later(before: CommunicatorSums, now: CommunicatorSums) -> CommunicatorSums:
    """Return ``now``. Times are read while they are written, and what is not over may be counted twice for once."""
    return now._replace(under_way=max(before.under_way, now.under_way), waited=max(before.waited, now.waited))
