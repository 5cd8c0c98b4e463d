"""Which hosts a job may use: reads every spelling in use and returns ``Host`` objects. No I/O.

* ``-H a:4,b:4`` as horovodrun and mpirun write it; ``-H a,b`` leaves the slots open (``place`` divides the ranks);
* a hostfile as horovodrun, Open MPI, MPICH or IBM's ddlrun read it: one host per line, ``b``, ``b:4``, ``b slots=4``
  (also Open MPI's ``max_slots=8``, which means nothing here), ``#`` begins a comment;
* Slurm's lists, ``node[01-04,07],other``, with counts such as ``4(x2),1``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from ddl.errors import ConfigError
from ddl.text.spelling import did_you_mean

__all__ = [
    "Host",
    "bare_name",
    "expand_counts",
    "expand_nodes",
    "merged",
    "parse_host",
    "parse_hostfile",
    "parse_hosts",
]

#: Letters, digits and what occurs in names, addresses (also IPv6 in brackets) and ``user@host``; never an option.
_NAME = re.compile(r"(?!-)(?:[\w.-]+@)?(?:[\w.-]+|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\])", re.ASCII)
_MOST_NODES = 1_000_000
#: What may stand behind a host in a hostfile; all but the first are Open MPI's, who runs more ranks than slots by them.
_KEYS = ("slots", "max_slots", "max-slots", "maxslots")


@dataclass(frozen=True)
class Host:
    """A host and how many ranks may run there; None where nobody said."""

    name: str
    slots: Optional[int] = None


def bare_name(name: str) -> str:
    """Return what the name service is asked for: ``b`` of ``user@b``, an IPv6 address without its brackets."""
    return name.rpartition("@")[2].strip("[]")


def parse_hosts(text: str, where: str = "-H") -> Tuple[Host, ...]:
    """Read ``a:4,b:4``. The same host twice has the slots of both. ConfigError names what makes no sense."""
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise ConfigError(f"{where} {text!r}: a host is missing between two commas; write host:slots,host:slots")
    return merged([parse_host(entry, f"{where} {entry!r}") for entry in entries], where)


def parse_hostfile(text: str, path: str) -> Tuple[Host, ...]:
    """Read the text of the hostfile ``path``. ConfigError names the line."""
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        where = f"{path}:{number}"
        host = parse_host(fields[0], f"{where}: {fields[0]!r}")
        for field in fields[1:]:
            name, equals, value = field.partition("=")
            if not equals and len(fields) == 2:  # "b 4"
                name, value = "slots", name
            elif not equals:
                raise ConfigError(f"{where}: {field!r}: write 'host slots=N' or 'host:N'")
            if name not in _KEYS:
                raise ConfigError(
                    f"{where}: {field!r}: a hostfile has no {name!r}{did_you_mean(name, _KEYS)}; write 'host slots=N'"
                )
            if name == "slots":
                if host.slots is not None:
                    raise ConfigError(f"{where}: the slots of {host.name} stand there twice")
                host = Host(host.name, _slots(value, f"{where}: {field!r}"))
        hosts.append(host)
    if not hosts:
        raise ConfigError(f"{path}: there is no host in it; write one per line, 'host slots=N'")
    return merged(hosts, path)


def parse_host(text: str, where: str) -> Host:
    """Read ``a:4`` or ``a``. ConfigError begins with ``where``."""
    name, colon, slots = text.rpartition(":")
    if not colon or text.endswith("]"):  # no slots, or the colons of a bare IPv6 address in brackets
        name, slots = text, ""
    if not _NAME.fullmatch(name):
        brackets = "; write an IPv6 address in brackets, [fd77::1] or [fd77::1]:slots"
        how = brackets if text.count(":") > 1 else "; write host or host:slots"
        raise ConfigError(f"{where}: {name!r} is not the name of a host{how}")
    return Host(name, _slots(slots, where) if slots or colon and not text.endswith("]") else None)


def _slots(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1:
        raise ConfigError(f"{where}: {text!r} is not a number of slots; it must be a whole number from 1 up")
    return int(text)


def merged(hosts: Sequence[Host], where: str) -> Tuple[Host, ...]:
    """Open MPI's way: a host that is named again has more slots, one each where none is given."""
    open_ended = {host.slots is None for host in hosts}
    if len(open_ended) == 2:
        bare = next(host.name for host in hosts if host.slots is None)
        raise ConfigError(f"{where}: some hosts have slots, but {bare} has none; give every host slots, or none")
    merged: Dict[str, Host] = {}
    for host in hosts:
        before = merged.get(host.name)
        if before is None:
            merged[host.name] = host
        elif host.slots is None or before.slots is None:
            raise ConfigError(f"{where}: {host.name} stands there twice; write {host.name}:2 for two ranks")
        else:
            merged[host.name] = Host(host.name, before.slots + host.slots)
    return tuple(merged.values())


def expand_nodes(text: str) -> List[str]:
    """Return the names of a Slurm node list, ``a,n[01-03,7]`` as a, n01, n02, n03, n7. ConfigError."""
    names: List[str] = []
    for part in _split_outside_brackets(text):
        names += _expand(part, text)
    return names


def _split_outside_brackets(text: str) -> List[str]:
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise ConfigError(f"node list {text!r}: its brackets do not match")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    if depth:
        raise ConfigError(f"node list {text!r}: its brackets do not match")
    return [*parts, text[start:]]


def _expand(part: str, whole: str) -> List[str]:
    match = re.fullmatch(r"([^\[\]]*)(?:\[([^\[\]]*)\](.*))?", part, re.DOTALL)
    if not part or match is None:
        raise ConfigError(f"node list {whole!r}: {part!r} makes no sense")
    head, ranges, rest = match.groups()
    if ranges is None:
        return [head]
    tails = _expand(rest, whole) if rest else [""]
    names = []
    for item in ranges.split(","):
        ends = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", item)
        if ends is None:
            raise ConfigError(f"node list {whole!r}: {item!r} is no number and no range of numbers")
        first, last = ends[1], ends[2] or ends[1]
        if not 0 <= int(last) - int(first) < _MOST_NODES:
            raise ConfigError(f"node list {whole!r}: {item!r} counts backwards, or too far")
        for number in range(int(first), int(last) + 1):
            names += [f"{head}{number:0{len(first)}}{tail}" for tail in tails]
    return names


def expand_counts(text: str) -> List[int]:
    """Return the numbers of Slurm's ``2(x3),1``: 2, 2, 2, 1. ConfigError."""
    counts: List[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if match is None:
            raise ConfigError(f"{text!r}: {part!r} is not a count such as 4 or 4(x2)")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
