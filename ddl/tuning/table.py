"""The table that ``ddl tune`` writes and ``select`` reads: which line serves which size on one cluster, and why.

It is TOML that people can read, too; docs/tune.md describes it. It also holds the figures of the links, so that
``ddl simulate --topology`` can read the same file as a machine. This module has the contents, the text and the checks,
without I/O. ddl/tuning/measure/table_file.py says where the file lies and how all ranks get the same table.
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
    """What determines speed and is the same on all ranks. A table is valid for one such cluster."""

    hosts: Tuple[str, ...]  #: "name:ranks", in the order of their first ranks
    dimensions: str  #: DDL_DIMENSIONS; empty: as discovered
    shared_memory: bool  #: whether ranks of a host use it
    rails: int
    connections: int  #: DDL_CONNECTIONS
    wire: str  #: DDL_WIRE

    @property
    def fingerprint(self) -> str:
        """Return 12 hexadecimal digits that are different for different clusters."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]

    def difference(self, other: TunedCluster, *, names: bool) -> str:
        """Return as text how ``other`` differs, or an empty string. ``names``: the names of hosts count, too."""
        for part in fields(self):
            own, theirs = getattr(self, part.name), getattr(other, part.name)
            if part.name == "hosts" and not names:
                own, theirs = ([host.rpartition(":")[2] for host in hosts] for hosts in (own, theirs))
            if own != theirs:
                return f"{part.name} was {_value(own)} then and is {_value(theirs)} now"
        return ""


@dataclass(frozen=True)
class MeasuredSize:
    """One size: seconds of the line that was chosen, and of the default in the same rounds."""

    nbytes: int
    algorithm: str
    seconds: float
    default: str
    default_seconds: float


@dataclass(frozen=True)
class Table:
    """The lines of a few collectives. They were measured on ``topology``, with ``local_size`` ranks sharing memory.

    ``machine`` is what ``ddl simulate`` reads: the tables ``host`` and ``network`` of its file, or empty.
    """

    lines: Mapping[Collective, Lines]
    cluster: TunedCluster
    topology: str
    local_size: int
    date: str = ""  #: as 2026-11-22
    ddl: str = __version__
    racks: Optional[Racks] = None  #: by which topologies of jobs are laid out; None: there are no useful ones
    measured: Mapping[Collective, Tuple[MeasuredSize, ...]] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    def lay_out(self, topology: Topology) -> Topology:
        """Return the discovered ``topology`` with the racks of the table, if it has the same number of hosts."""
        if self.racks is None or topology.dimensions[-1].size != len(self.cluster.hosts):
            return topology
        return topology.in_racks(self.racks.groups)

    def misfit(self, topology: Topology) -> str:
        """Return as text why the table does not suit the discovered ``topology``, or an empty string."""
        topology = self.lay_out(topology)
        if (self.topology, self.local_size) != (str(topology), topology.local_size):
            return (
                f"it was measured on {self.topology} with {self.local_size} ranks sharing memory, but this job is "
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
        """Return why a line was chosen: the times at its largest measured size, or an empty string without any."""
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
        """Return the table that ``text`` has written. Raises ``ConfigError``, which does not name the file."""
        try:
            content = tomllib.loads(text)
        except ValueError as error:
            raise ConfigError(f"it is not valid TOML: {error}") from error
        tuned = content.pop("tuned", None)
        if not isinstance(tuned, dict):
            raise ConfigError("it has no table [tuned], which ddl tune writes")
        if tuned.get("version") != VERSION:
            raise ConfigError(f"its format is version {tuned.get('version')}, but this DDL reads version {VERSION}")
        if tuned.get("ddl") != __version__:
            raise ConfigError(f"it was measured with DDL {tuned.get('ddl')}, but this is DDL {__version__}")
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
            raise ConfigError(f"an entry is missing, unknown or wrong: {error}") from error


def explain(collective: Collective, lines: Lines, table: Optional[Table], forced: str) -> List[str]:
    """Return for each of a job's lines what it does and why it was chosen, for the log."""
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


#: The fields of a table, a line, a cluster, racks and a measured size, with their types in TOML.
_HEAD: Dict[str, type] = {"ddl": str, "date": str, "topology": str, "local_size": int}
_LINE: Dict[str, type] = {"max_bytes": int, "algorithm": str, "piece_bytes": int, "in_flight": int, "small": bool}
_CLUSTER: Dict[str, type] = {
    "hosts": list, "dimensions": str, "shared_memory": bool, "rails": int, "connections": int, "wire": str,
}  # fmt: skip
_RACKS: Dict[str, type] = {
    "within_bytes_per_s": float, "between_bytes_per_s": float,
    "nbytes": int, "seconds": float, "default_seconds": float,
}  # fmt: skip
_OTHERS = ("version", "cluster", "racks")  #: further entries of [tuned] that are not collectives
_MEASURED: Dict[str, type] = {
    "nbytes": int, "algorithm": str, "seconds": float, "default": str, "default_seconds": float,
}  # fmt: skip


def _plain(table: Any, types: Mapping[str, type]) -> Dict[str, Any]:
    """Check that the entries of a table are exactly those of ``types``, and return them; lists become tuples."""
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
        raise TypeError(f"{collective.name.lower()} needs a last line without max_bytes, for all larger sizes")
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
    """Return the lines of a file of ``ddl simulate``; plain values must come before all tables."""
    out = [f"{name} = {_value(value)}" for name, value in machine.items() if isinstance(value, (str, int, float))]
    for name, value in machine.items():
        for table in value if isinstance(value, list) else [value] if isinstance(value, dict) else []:
            out += ["", f"[[{name}]]" if isinstance(value, list) else f"[{name}]"]
            out += [f"{key} = {_value(entry)}" for key, entry in table.items()]
    return out
