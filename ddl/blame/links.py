"""Finds links between hosts that are slow, or silent, by what the kernel knows of their connections.

A link is one direction between two hosts, on one rail. In a ring, all links carry the same, and the slowest decides how
fast all go. So all ranks wait alike, and no rank is late. What differs is the time that each link needs for its bytes:
a fast one has sent them soon and then waits for more, the slow one is always busy.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import DefaultDict, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ddl.blame.finding import Finding
from ddl.blame.view import JobView
from ddl.records.connections import ConnectionView
from ddl.text.units import duration

__all__ = ["link_findings"]

_RATIO = 3.0  # so many times as fast are other links
_LEAST_BYTES = 16 << 20  # that a link has carried: before that, rates are those of short messages
_LEAST_BYTES_WATCHED = 64 << 10  # that it has carried while it was watched
_LEAST_BUSY = 0.5  # of the time
_SIMILAR = 0.25  # of its bytes another link must have carried: then it does the same work
_SILENT = 1.0  # seconds without an acknowledgement of what was sent


class _BusyLink(NamedTuple):
    source: str  # hosts
    target: str
    local: str  # addresses
    remote: str

    @property
    def turned(self) -> _BusyLink:
        """The other direction."""
        return _BusyLink(self.target, self.source, self.remote, self.local)

    @property
    def hosts(self) -> FrozenSet[str]:
        """Both ends."""
        return frozenset((self.source, self.target))

    def __str__(self) -> str:
        return f"host {self.source} to host {self.target} ({self.local} to {self.remote})"


@dataclass
class _Load:
    """What all connections of a link do together: while they were watched; if they were not, in all their life."""

    views: List[ConnectionView]
    lifetime: float = 0.0  #: seconds since a process began to use DDL

    @property
    def seconds(self) -> float:
        """How long they were watched, or have lived."""
        return min(view.window for view in self.views) or self.lifetime

    @property
    def is_watched(self) -> bool:
        return all(view.window for view in self.views)

    @property
    def acknowledged(self) -> int:
        return sum(view.acknowledged_in_window if self.is_watched else view.acknowledged for view in self.views)

    @property
    def busy(self) -> float:
        """Seconds. Connections may take turns, or be busy at the same time."""
        busy = sum(view.busy_in_window if self.is_watched else view.busy for view in self.views)
        return min(busy, self.seconds)

    @property
    def rate(self) -> float:
        """Bytes a second, while busy."""
        return self.acknowledged / self.busy if self.busy else float("inf")

    @property
    def silence(self) -> float:
        """Seconds for which none has acknowledged anything, though each has sent something; 0: they do."""
        waiting = [view for view in self.views if view.unacknowledged]
        return min(view.last_ack for view in waiting) if len(waiting) == len(self.views) else 0.0

    @property
    def sent_again(self) -> int:
        return sum(view.sent_again for view in self.views)


def link_findings(view: JobView) -> Iterator[Finding]:
    """Return findings about links that are silent or slow while others between the hosts are well."""
    links = _links(view)
    silent = {link for link, load in links.items() if load.silence >= _SILENT}
    for link in sorted(silent):
        told = link.turned in silent and link.turned < link  # with its other direction
        others = links.keys() - silent - {link.turned}
        if not told and any(link.hosts == other.hosts for other in others):
            yield _down(view, link, links[link])
    slow = {link: usual for link in links.keys() - silent for usual in [_usual(link, links)] if usual is not None}
    if slow:
        yield _slow(view, links, slow)


def _links(view: JobView) -> Dict[_BusyLink, _Load]:
    """Return the links over which ranks of dumps are connected."""
    ends = {each.local: number for number, dump in view.dumps.items() for each in dump.connections}
    links: DefaultDict[_BusyLink, _Load] = defaultdict(lambda: _Load([]))
    for number, dump in view.dumps.items():
        for connection in dump.connections:
            peer = ends.get(connection.remote)
            if peer is not None and view.host(peer) != view.host(number):
                addresses = (connection.local.rpartition(":")[0], connection.remote.rpartition(":")[0])
                load = links[_BusyLink(view.host(number), view.host(peer), *addresses)]
                load.views.append(connection)
                load.lifetime = max(load.lifetime, dump.taken - dump.record.monotonic)
    return dict(links)


def _rails(links: Iterable[_BusyLink]) -> Dict[str, int]:
    """Return to which network each address belongs: all that are linked are on the same."""
    rails: Dict[str, int] = {}
    for number, link in enumerate(links):
        joined = {rails.get(link.local, number), rails.get(link.remote, number)}
        rails = {address: number if rail in joined else rail for address, rail in rails.items()}
        rails[link.local] = rails[link.remote] = number
    return rails


def _usual(link: _BusyLink, links: Dict[_BusyLink, _Load]) -> Optional[float]:
    """Return the rate of links that do as much on the same rail, if ``link`` is much slower; else None."""
    load = links[link]
    least = _LEAST_BYTES_WATCHED if load.is_watched else _LEAST_BYTES
    if load.acknowledged < least or load.busy < _LEAST_BUSY * load.seconds:
        return None
    rails = _rails(links)  # they may be of different speeds, and get bytes accordingly
    others = [
        other.rate
        for name, other in links.items()
        if name != link
        and rails[name.local] == rails[link.local]
        and other.acknowledged >= _SIMILAR * load.acknowledged
    ]
    if not others or _RATIO * load.rate > statistics.median(others):
        return None
    return statistics.median(others)


def _slow(view: JobView, links: Dict[_BusyLink, _Load], slow: Dict[_BusyLink, float]) -> Finding:
    common = frozenset.intersection(*(link.hosts for link in slow))
    first = min(slow, key=lambda link: links[link].rate)
    others = f"others as busy reach {slow[first] / 1e6:.3g} MB/s"
    host = next(iter(common)) if len(slow) > 1 and len(common) == 1 else ""
    what = f"the links of host {host} are slow" if host else f"the link from {first} is slow"
    sentence = f"{what}: {links[first].rate / 1e6:.3g} MB/s while busy; {others}"
    return Finding(
        "slow link",
        _ranks(view, (host,) if host else (first.source, first.target)),
        host,
        sentence,
        tuple(_evidence(link, links[link]) for link in sorted(slow)),
        "look at that port, cable and switch ('ethtool', 'ddl doctor'); if it is meant to be slower, nothing is wrong",
    )


def _down(view: JobView, link: _BusyLink, load: _Load) -> Finding:
    return Finding(
        "link down",
        _ranks(view, (link.source, link.target)),
        "",
        f"the rail from {link} is silent: nothing was acknowledged for {duration(load.silence)}; "
        "another rail between these hosts goes on",
        (_evidence(link, load),),
        "look at the cables and ports of that rail: 'ip -s link', 'ddl doctor'; the job goes on over the others",
    )


def _evidence(link: _BusyLink, load: _Load) -> str:
    again = f", {load.sent_again / 1e6:.3g} MB sent again" if load.sent_again else ""
    return (
        f"{link}: {load.acknowledged / 1e6:.4g} MB, busy for {duration(load.busy)} of {duration(load.seconds)}{again}"
    )


def _ranks(view: JobView, hosts: Sequence[str]) -> Tuple[int, ...]:
    return tuple(sorted(view.rank(number) for number in view.dumps if view.host(number) in hosts))
