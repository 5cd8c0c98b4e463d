"""The table that ``ddl tune`` writes and ``select`` reads: which line serves which size on one cluster, and why.

It is TOML, made to be read by people, too; docs/tune.md describes it. Beside the lines it holds the figures of the
links, so that the same file is a machine for ``ddl simulate --topology``. Here are its contents, its text and its
checks, without I/O; where the file lies and how all ranks come to the same table: ddl/tuning/measure/table_file.py.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass, field, fields
from operator import index
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ddl._version import __version__
from ddl.errors import ConfigError, InvalidArgument
from ddl.plan import build
from ddl.plan.canonical_tree import CANONICAL
from ddl.plan.ir import Collective
from ddl.text.units import bytes_text, duration
from ddl.topology import Topology
from ddl.tuning.racks import Racks
from ddl.tuning.select import ANY, MOST_IN_FLIGHT, Line, Lines, line_for, of_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["VERSION", "TunedCluster", "MeasuredSize", "Table", "explain"]

VERSION = 1  #: of the format


@dataclass(frozen=True)
class TunedCluster:
    """What decides speed and is the same on all ranks: a table holds for one of these."""

    hosts: Tuple[str, ...]  #: "name:ranks", in the order of their first ranks
    dimensions: str  #: DDL_DIMENSIONS; empty: as discovered
    shared_memory: bool  #: whether it is used between ranks of a host
    rails: int
    connections: int  #: DDL_CONNECTIONS
    wire: str  #: DDL_WIRE

    @property
    def fingerprint(self) -> str:
        """Return 12 hexadecimal digits that differ where clusters do."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]

    def difference(self, other: TunedCluster, *, names: bool) -> str:
        """Return how ``other`` differs, for people; empty: not at all. ``names``: hosts must be the same ones, too."""
        for part in fields(self):
            own, theirs = getattr(self, part.name), getattr(other, part.name)
            if part.name == "hosts" and not names:
                own, theirs = ([host.rpartition(":")[2] for host in hosts] for hosts in (own, theirs))
            if own != theirs:
                return f"{part.name} was {_value(own)} then and is {_value(theirs)} now"
        return ""


@dataclass(frozen=True)
class MeasuredSize:
    """One size: seconds of the line that was chosen, and of the default at the same time."""

    nbytes: int
    algorithm: str
    seconds: float
    default: str
    default_seconds: float


@dataclass(frozen=True)
class Table:
    """Lines for some collectives. ``topology`` and ``local_size`` are those on which they were measured.

    ``machine`` is what ``ddl simulate`` reads: the tables ``host`` and ``network`` of its file, or nothing.
    """

    lines: Mapping[Collective, Lines]
    cluster: TunedCluster
    topology: str
    local_size: int
    date: str = ""  #: as 2026-11-22
    ddl: str = __version__
    racks: Optional[Racks] = None  #: by which the job's own topology is laid out; None: there are none of use
    measured: Mapping[Collective, Tuple[MeasuredSize, ...]] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    def lay_out(self, topology: Topology) -> Topology:
        """Return ``topology``, which was discovered, with the racks of the table if it is one of as many hosts."""
        if self.racks is None or topology.dimensions[-1].size != len(self.cluster.hosts):
            return topology
        return topology.in_racks(self.racks.groups)

    def misfit(self, topology: Topology) -> str:
        """Return why the table does not suit ``topology``, which was discovered, for people; empty: it does."""
        topology = self.lay_out(topology)
        if (self.topology, self.local_size) != (str(topology), topology.local_size):
            return (
                f"it was measured on {self.topology} with {self.local_size} ranks sharing memory, and this job is "
                f"{topology} with {topology.local_size}"
            )
        for collective, lines in self.lines.items():
            for line in lines:
                try:
                    build(collective, line.algorithm, topology, 0)
                except InvalidArgument as error:
                    return str(error)
        return ""

    def reason(self, collective: Collective, line: Line) -> str:
        """Return why a line is there: what was measured at the largest size that it serves; empty: nothing was."""
        served = [
            row for row in self.measured.get(collective, ()) if of_size(self.lines[collective], row.nbytes) is line
        ]
        if not served:
            return ""
        last = served[-1]
        seconds, default = duration(last.seconds), f"default {last.default} {duration(last.default_seconds)}"
        return f"tuned {self.date}: {seconds} at {bytes_text(last.nbytes)}, {default}"

    # --- text ---

    def text(self) -> str:
        """Return the table as TOML."""
        out = [
            "# Written by `ddl tune`: the links' figures, which `ddl simulate --topology` reads, and which algorithm",
            "# serves which size here. The file is found by its name in this directory, or by DDL_TUNED=FILE.",
            *_machine_lines(self.machine),
            "",
            "[tuned]",
            f"version = {VERSION}",
            *(f"{name} = {_value(getattr(self, name))}" for name in _HEAD),
            "",
            "[tuned.cluster]",
            *(f"{field.name} = {_value(getattr(self.cluster, field.name))}" for field in fields(TunedCluster)),
        ]
        if self.racks is not None:
            out += ["", "[tuned.racks]", *(f"{name} = {_value(value)}" for name, value in asdict(self.racks).items())]
        for collective, lines in self.lines.items():
            rows = [{name: getattr(line, name) for name in _LINE} for line in lines]
            del rows[-1]["max_bytes"]  # it serves all larger sizes
            seen = (_inline(asdict(row)) for row in self.measured.get(collective, ()))
            out += ["", f"[tuned.{collective.name.lower()}]", *_array("lines", map(_inline, rows))]
            out += _array("measured", seen)
        return "\n".join(out) + "\n"

    @staticmethod
    def parse(text: str) -> Table:
        """Read what ``text`` returned. Raises ``ConfigError``, which says what is wrong, but not in which file."""
        try:
            content = tomllib.loads(text)
        except ValueError as error:
            raise ConfigError(f"it is no TOML: {error}") from error
        tuned = content.pop("tuned", None)
        if not isinstance(tuned, dict):
            raise ConfigError("it has no [tuned], which ddl tune writes")
        if tuned.get("version") != VERSION:
            raise ConfigError(f"its format is version {tuned.get('version')}, and this DDL reads {VERSION}")
        if tuned.get("ddl") != __version__:
            raise ConfigError(f"it was measured with DDL {tuned.get('ddl')}, and this is {__version__}")
        try:
            cluster = TunedCluster(**_plain(tuned["cluster"], _CLUSTER))
            known = {collective.name.lower(): collective for collective in Collective}
            of = {known[name]: part for name, part in tuned.items() if name not in (*_OTHERS, *_HEAD)}
            return Table(
                lines={collective: _lines(collective, part["lines"], tuned) for collective, part in of.items()},
                cluster=cluster,
                **_plain({name: tuned[name] for name in _HEAD}, _HEAD),
                racks=_racks(tuned["racks"], len(cluster.hosts)) if "racks" in tuned else None,
                measured={
                    collective: tuple(_measured(row) for row in part["measured"]) for collective, part in of.items()
                },
                machine=content,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"something in it is missing or unknown: {error}") from error


def explain(collective: Collective, lines: Lines, table: Optional[Table], forced: str) -> List[str]:
    """Return for each of a job's lines what was chosen and why, for the log."""
    tuned = table is not None and table.lines.get(collective) is lines
    texts = []
    for line in lines:
        why = table.reason(collective, line) if table is not None and tuned else ""
        if line.algorithm in CANONICAL:
            why = "deterministic"
        if forced and not tuned and line.algorithm == forced:
            why = f"forced by DDL_ALGORITHM={forced}"
        until = "beyond" if line.max_bytes == ANY else f"up to {bytes_text(line.max_bytes)}"
        pieces = f", {line.in_flight} pieces of {bytes_text(line.piece_bytes)} at once" if line.piece_bytes else ""
        texts.append(f"{collective.name.lower()} {until}: {line.algorithm}{pieces} ({why or 'default'})")
    return texts


#: Fields of a table, a line and a cluster, with the type that TOML gives them.
_HEAD: Dict[str, type] = {"ddl": str, "date": str, "topology": str, "local_size": int}
_LINE: Dict[str, type] = {"max_bytes": int, "algorithm": str, "piece_bytes": int, "in_flight": int, "small": bool}
_CLUSTER: Dict[str, type] = {
    "hosts": list, "dimensions": str, "shared_memory": bool, "rails": int, "connections": int, "wire": str,
}  # fmt: skip
_RACKS: Dict[str, type] = {
    "within_bytes_per_s": float, "between_bytes_per_s": float,
    "nbytes": int, "seconds": float, "default_seconds": float,
}  # fmt: skip
_OTHERS = ("version", "cluster", "racks")  #: what else is no collective
_MEASURED: Dict[str, type] = {
    "nbytes": int, "algorithm": str, "seconds": float, "default": str, "default_seconds": float,
}  # fmt: skip


def _plain(table: Any, types: Mapping[str, type]) -> Dict[str, Any]:
    """Return a table whose entries are exactly those of ``types``; lists become tuples."""
    values: Dict[str, Any] = dict(table)
    for name in {**types, **values}:
        if name not in types or type(values[name]) is not types[name]:
            raise TypeError(f"{name} = {values.get(name)!r}")
        if types[name] is list:
            values[name] = tuple(map(str, values[name]))
    return values


def _measured(row: Any) -> MeasuredSize:
    return MeasuredSize(**_plain(row, _MEASURED))


def _racks(part: Any, hosts: int) -> Racks:
    plain = dict(part)
    groups = tuple(tuple(map(index, group)) for group in plain.pop("groups"))
    Topology.flat(hosts).in_racks(groups)  # raises ConfigError
    return Racks(groups, **_plain(plain, _RACKS))


def _lines(collective: Collective, rows: Sequence[Any], tuned: Mapping[str, Any]) -> Lines:
    lines: List[Line] = []
    for number, row in enumerate(rows):
        given = _plain(row if number < len(rows) - 1 else {"max_bytes": ANY, **row}, _LINE)
        separate = tuned["local_size"] < _size(tuned["topology"])
        line = line_for(collective, separate=separate, **given)
        sound = 0 <= line.piece_bytes < ANY and 1 <= line.in_flight <= MOST_IN_FLIGHT
        if not (sound and (lines[-1].max_bytes if lines else -1) < line.max_bytes <= ANY):
            raise TypeError(f"line {number + 1} of {collective.name.lower()}: {_inline(row)}")
        lines.append(line)
    if not lines or lines[-1].max_bytes != ANY:
        raise TypeError(f"{collective.name.lower()} has no last line without max_bytes, for all larger sizes")
    return tuple(lines)


def _size(topology: str) -> int:
    return Topology.parse(topology).size


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return _inline(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return f"{value:.6e}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _inline(table: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{name} = {_value(value)}" for name, value in table.items()) + " }"


def _array(name: str, rows: Iterable[str]) -> List[str]:
    return [f"{name} = [", *(f"  {row}," for row in rows), "]"]


def _machine_lines(machine: Mapping[str, Any]) -> List[str]:
    """Return the tables of a file of ``ddl simulate``; plain values stand before all tables."""
    out = [f"{name} = {_value(value)}" for name, value in machine.items() if isinstance(value, (str, int, float))]
    for name, value in machine.items():
        for table in value if isinstance(value, list) else [value] if isinstance(value, dict) else []:
            out += ["", f"[[{name}]]" if isinstance(value, list) else f"[{name}]"]
            out += [f"{key} = {_value(entry)}" for key, entry in table.items()]
    return out
