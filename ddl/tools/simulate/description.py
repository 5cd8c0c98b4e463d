"""Reads a machine, and what runs on it, from TOML: the file of ``ddl simulate --topology``, and the presets beside it.

``ddl tune`` writes such a file, too, with its own table ``[tuned]`` in it.

    mode = "2x4"                          # dimensions, innermost first; default: ranks per host x hosts
    wire_bytes_per_byte = 1.0             # payload and its share of headers, on a network

    [host]
    ranks = 2
    memory = { latency_s = 1e-6, bandwidth_bytes_per_s = 40e9 }   # shared by its ranks; or, if they share none:
    # link = { latency_s = 2e-6, bandwidth_bytes_per_s = 20e9 }   # of each rank to the others

    [core]                                # of each rank; all of it may be left out
    overhead_s = 1e-6

    [gpu]                                 # where arrays are on GPUs: their links to the memory of a host
    links = 2                             # in each host; its ranks share them evenly
    down_bytes_per_s = 50e9               # to the host
    up_bytes_per_s = 50e9
    both_bytes_per_s = 80e9               # both directions together
    latency_s = 10e-6                     # until the end of a copy is seen

    [[network]]                           # hosts; then racks, and so on
    name = "hosts"
    size = 4
    latency_s = 20e-6
    bandwidth_bytes_per_s = 125e6         # of each host's port, in each direction, on each of its
    rails = 1

    [training]                            # what the options of the same names set, too
    model = "resnet50"
    batch = 32
    samples_per_second = 158.0

A ``[[assumption]]`` has a ``text`` and its ``standing``: fact, derived or assumed. All are printed with the results.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Type

from ddl.errors import ConfigError
from ddl.topology import Link
from ddl.tuning.simulate.cost import Core, GpuLinks, Level, Machine, SharedMemory

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PRESETS", "Assumption", "Description", "TrainingDescription", "parse", "preset", "read"]

_HERE = Path(__file__).resolve().parent
PRESETS = tuple(sorted(path.stem for path in _HERE.glob("*.toml")))
_STANDINGS = ("fact", "derived", "assumed")
Table = Dict[str, Any]


@dataclass(frozen=True)
class Assumption:
    """A figure's origin: ``standing`` is fact, derived or assumed."""

    standing: str
    text: str


@dataclass(frozen=True)
class TrainingDescription:
    """What the file says of the training; None or empty: nothing."""

    model: Optional[str] = None
    classes: int = 1000
    batch: Optional[int] = None
    samples_per_second: Optional[float] = None
    overlap: bool = True
    bucket_bytes: Optional[int] = None
    published: Optional[float] = None  #: efficiency at the full size, to print beside ours


@dataclass(frozen=True)
class Description:
    """A file's content. ``modes`` may be empty; ``hosts``: for which numbers of them."""

    machine: Machine
    modes: Tuple[str, ...] = ()
    hosts: Tuple[int, ...] = ()
    training: TrainingDescription = TrainingDescription()
    assumptions: Tuple[Assumption, ...] = ()


def read(path: str) -> Description:
    """Read a file. Raises ``ConfigError``, which says what is wrong with it."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: it cannot be read: {error}") from error
    try:
        return parse(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def preset(name: str) -> Description:
    """Read the preset of that name. Raises ``ConfigError``."""
    if name not in PRESETS:
        raise ConfigError(f"--preset {name}: there is none of this name; use one of {', '.join(PRESETS)}")
    return read(str(_HERE / f"{name}.toml"))


def parse(content: Table) -> Description:
    """Turn what TOML said into a description. Raises ``ConfigError``."""
    tables = ("host", "core", "gpu", "network", "training", "assumption")
    known = ("mode", "modes", "hosts", "wire_bytes_per_byte", *tables)
    # What ddl tune chose there says nothing of the machine.
    _refuse_unknown("the file", {name: value for name, value in content.items() if name != "tuned"}, known)
    host = _table(content, "host")
    _refuse_unknown("[host]", host, ("ranks", "memory", "link"))
    if "memory" in host and "link" in host:
        raise ConfigError("[host] has memory and link; its ranks either share memory or send each other messages")
    memory = _build(SharedMemory, "[host] memory", host["memory"]) if "memory" in host else None
    link = _build(Link, "[host] link", host["link"]) if "link" in host else None
    levels = [Level("ranks", _number("[host]", host, "ranks", 1), link)]
    networks = content.get("network", [])
    if not isinstance(networks, list):
        raise ConfigError("network must be a list of tables: write [[network]]")
    levels += [_level(number, network) for number, network in enumerate(networks)]
    wire = content.get("wire_bytes_per_byte", 1.0)
    if isinstance(wire, bool) or not isinstance(wire, (int, float)):
        raise ConfigError(f"wire_bytes_per_byte = {wire!r} is no number")
    core: Core = _build(Core, "[core]", _table(content, "core"))
    gpus = _build(GpuLinks, "[gpu]", content["gpu"]) if "gpu" in content else None
    machine = Machine(tuple(levels), memory, core, float(wire), gpus)
    training: TrainingDescription = _build(TrainingDescription, "[training]", _table(content, "training"))
    modes = [content["mode"]] if "mode" in content else content.get("modes", [])
    if not isinstance(modes, list) or not all(isinstance(mode, str) for mode in modes):
        raise ConfigError(f'modes = {modes!r} is no list of texts such as "4x64"')
    hosts = content.get("hosts", [])
    if not isinstance(hosts, list) or not all(type(count) is int and count >= 1 for count in hosts):
        raise ConfigError(f"hosts = {hosts!r} is no list of numbers of hosts")
    return Description(machine, tuple(modes), tuple(hosts), training, _assumptions(content.get("assumption", [])))


def _level(number: int, table: Any) -> Level:
    where = f"[[network]] {number + 1}"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is no table")
    limits = {name: table[name] for name in ("burst_bytes", "burst_bytes_per_s") if name in table}
    own = ("name", "size", *limits)
    link = _build(Link, where, {name: value for name, value in table.items() if name not in own})
    name = table.get("name", f"network {number + 1}")
    bursts = _build(_Burst, where, limits)
    return Level(str(name), _number(where, table, "size", None), link, bursts.burst_bytes, bursts.burst_bytes_per_s)


@dataclass(frozen=True)
class _Burst:
    burst_bytes: float = 0.0
    burst_bytes_per_s: float = inf


def _assumptions(entries: Any) -> Tuple[Assumption, ...]:
    assumptions: List[Assumption] = []
    for entry in entries if isinstance(entries, list) else [entries]:
        assumption: Assumption = _build(Assumption, "[[assumption]]", entry)
        if assumption.standing not in _STANDINGS:
            raise ConfigError(
                f"[[assumption]] standing = {assumption.standing!r} must be one of {', '.join(_STANDINGS)}"
            )
        assumptions.append(assumption)
    return tuple(assumptions)


# --- tables into data classes ---


def _table(content: Table, name: str) -> Table:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{name} is no table: write [{name}]")
    return table


def _refuse_unknown(where: str, table: Table, known: Tuple[str, ...]) -> None:
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}: {name!r} is not known; use {', '.join(known)}")


def _number(where: str, table: Table, name: str, default: Optional[int]) -> int:
    value = table.get(name, default)
    if type(value) is not int:
        raise ConfigError(f"{where}: {name} = {value!r} is no whole number" if name in table else f"{where}: no {name}")
    return value


#: By a field's annotation: the types that TOML may give.
_TYPES: Dict[str, Tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}


def _build(kind: Type[Any], where: str, table: Any) -> Any:
    """Make a data class of plain fields from a table of the same names."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is no table")
    types = {field.name: str(field.type).replace("Optional[", "").rstrip("]") for field in fields(kind)}
    _refuse_unknown(where, table, tuple(types))
    for name, value in table.items():
        if not isinstance(value, _TYPES[types[name]]) or (isinstance(value, bool) and types[name] != "bool"):
            raise ConfigError(f"{where}: {name} = {value!r} is no {types[name]}")
    try:
        return kind(**table)
    except TypeError as error:
        raise ConfigError(f"{where}: {str(error).replace('__init__() ', '').partition('.')[2] or error}") from error
