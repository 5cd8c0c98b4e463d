"""Every environment variable that DDL reads, as a typed, documented field that is read once.

``Identity`` says who this process is in its job (``ddlrun`` sets it; without it, a job of size 1). ``Settings`` says
how it is to behave. Each field has its variable, default and meaning as metadata, which ``describe()`` shows in the
documentation and in ``ddlrun --help``. An argument in a program comes before the environment, and the environment
before the default. A variable of Horovod's that means the same as one of DDL's is read, too, if DDL's is not set.
"""

from __future__ import annotations

import dataclasses
import os
import re
import textwrap
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type, TypeVar

from ddl.bootstrap import parse
from ddl.errors import ConfigError
from ddl.net.address import HOST_TIMEOUT, parse_address
from ddl.net.auth import MINIMUM_SECRET

__all__ = ["HOROVOD_LEVELS", "Identity", "Settings", "describe"]

#: How float32 can be written on the wire, with the codec's number there.
WIRE_CODECS = {"bf16": 1, "fp16": 2, "int8": 3}
#: Horovod's names of our levels, where it calls them otherwise.
HOROVOD_LEVELS = {"trace": "debug", "fatal": "error"}
#: Its variables that mean the same as one of ours, and how their values are written there; "" is not set.
_HOROVOD: Dict[str, Tuple[Tuple[str, Callable[[str], str]], ...]] = {
    "DDL_TIMEOUT": (
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", str),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", lambda seconds: "" if seconds == "0" else seconds),
    ),
    "DDL_START_TIMEOUT": (("HOROVOD_START_TIMEOUT", str),),
    "DDL_LOG": (("HOROVOD_LOG_LEVEL", lambda level: HOROVOD_LEVELS.get(level.lower(), level)),),
    # DYNAMIC allows hvd.start_timeline() there, which is always allowed here.
    "DDL_TIMELINE": (("HOROVOD_TIMELINE", lambda file: "" if file == "DYNAMIC" else file),),
    "DDL_TIMELINE_CYCLES": (("HOROVOD_TIMELINE_MARK_CYCLES", str),),
}
_Self = TypeVar("_Self", bound="Settings")


def _variable(name: str, default: Any, parsed: Callable[[str], Any], meaning: str) -> Any:
    """One field of ``Settings``. ``parsed`` makes its value of the text: see parse.py."""
    return dataclasses.field(default=default, metadata={"variable": name, "parsed": parsed, "meaning": meaning})


@dataclass(frozen=True)
class Settings:
    """How this process shall behave. Made by ``from_environ``; immutable."""

    timeout: float = _variable(
        "DDL_TIMEOUT", 300.0, parse.seconds, "seconds that an operation may take before the silent rank is named"
    )
    start_timeout: float = _variable(
        "DDL_START_TIMEOUT", 60.0, parse.seconds, "seconds that init waits for the other ranks"
    )
    host_timeout: float = _variable(
        "DDL_HOST_TIMEOUT",
        HOST_TIMEOUT,
        parse.silence,
        "seconds that a host, or the network to it, may be silent; that of ddlrun, or else of rank 0, counts",
    )
    algorithm: str = _variable("DDL_ALGORITHM", "", str, "force an algorithm instead of choosing the fastest")
    deterministic: bool = _variable(
        "DDL_DETERMINISTIC", False, parse.switch, "1: sums have the same bits on any hosts (docs/deterministic.md)"
    )
    rebalance: bool = _variable(
        "DDL_REBALANCE",
        False,
        parse.switch,
        "1: the others do the work of late ranks in large all-reduces (docs/metrics.md)",
    )
    dimensions: str = _variable(
        "DDL_DIMENSIONS", "", parse.dimensions, "layout of the ranks, innermost first, as 4x2; empty: from the hosts"
    )
    rendezvous_dir: str = _variable(
        "DDL_RENDEZVOUS_DIR",
        "",
        str,
        "shared directory in which ranks that srun, torchrun or Open MPI started find one another; empty: ~/.ddl",
    )
    host_id: str = _variable("DDL_HOST_ID", "", str, "which host this is; empty: found out by DDL")
    shm: bool = _variable("DDL_SHM", True, parse.switch, "0: do not use shared memory between the ranks of a host")
    shm_size: int = _variable(
        "DDL_SHM_SIZE", 0, parse.size, "bytes of shared memory per rank, as 512M or 2G; 0: automatic"
    )
    read_from: int = _variable(
        "DDL_READ_FROM",
        -1,
        parse.size_or_automatic,
        "bytes from which the kernel copies private arrays between ranks of a host (process_vm_readv, "
        "process_vm_writev); 0: never; -1: automatic",
    )
    cuda_library: str = _variable(
        "DDL_CUDA_LIBRARY", "", str, "the driver of GPUs, loaded for the first array there; empty: libcuda.so.1"
    )
    gpu_wait: str = _variable(
        "DDL_GPU_WAIT", "host", parse.gpu_wait, "what waits for results on GPUs: the host, or a stream (docs/gpu.md)"
    )
    elastic: bool = _variable(
        "DDL_ELASTIC", False, parse.switch, "1: ranks may come and go (docs/elastic.md); ddlrun --min-np sets it"
    )
    incarnation: int = _variable(
        "DDL_INCARNATION", -1, parse.incarnation, "number of a process that joins a job that runs; ddlrun sets it"
    )
    log: str = _variable("DDL_LOG", "warning", parse.level, "what is logged: " + ", ".join(parse.LEVELS))
    interface: str = _variable(
        "DDL_INTERFACE",
        "",
        str,
        "addresses on which data is accepted, one for each rail; empty: on all networks that join the hosts",
    )
    spin_us: int = _variable(
        "DDL_SPIN_US", -1, parse.microseconds, "microseconds of busy waiting before a thread sleeps; -1: automatic"
    )
    cores: int = _variable(
        "DDL_CORES",
        0,
        parse.cores,
        "threads of each rank that share large reductions and copies, the caller's among them; 0: automatic, 1: none",
    )
    wire: str = _variable(
        "DDL_WIRE",
        "",
        parse.wire,
        "float32 all-reduce between hosts is written as bf16 or fp16, summed as float32; empty: no",
    )
    rails: int = _variable(
        "DDL_RAILS", 0, parse.rails, "networks that data uses at once, at most; 0: all that join all hosts"
    )
    connections: int = _variable(
        "DDL_CONNECTIONS", 2, parse.connections, "TCP connections per peer and piece in flight, 1 to 16"
    )
    encrypt: bool = _variable(
        "DDL_ENCRYPT", False, parse.switch, "1: encrypt all TCP connections of the job (docs/security.md)"
    )
    openssl: str = _variable("DDL_OPENSSL", "", str, "the libssl that encrypts; empty: libssl.so.3, or libssl.so.1.1")
    checksum: bool = _variable(
        "DDL_CHECKSUM", False, parse.switch, "1: what ranks send over TCP has checksums (docs/security.md)"
    )
    congestion: str = _variable(
        "DDL_TCP_CONGESTION",
        "auto",
        parse.congestion,
        "congestion control of data connections; system: leave it; auto: cubic for bbr if round trips take below 1 ms",
    )
    tuned: str = _variable(
        "DDL_TUNED", "", str, "rank 0's file of ddl tune, which all ranks go by; off: none; empty: that of these hosts"
    )
    records: str = _variable("DDL_RECORDS", "", str, "where a rank passes on its record; ddlrun sets it")
    tune_seconds: float = _variable(
        "DDL_TUNE_SECONDS",
        0.0,
        parse.seconds_or_none,
        "measure all-reduces for so long at the start if there is no such file (ddlrun --mode p); rank 0's word counts",
    )
    timeline: str = _variable(
        "DDL_TIMELINE", "", str, "file for a timeline of operations, for chrome://tracing; rank 0 writes it"
    )
    timeline_cycles: bool = _variable(
        "DDL_TIMELINE_CYCLES", False, parse.switch, "1: mark in it each round in which ranks agree on what to run"
    )
    tune_allocator: bool = _variable(
        "DDL_TUNE_ALLOCATOR",
        True,
        parse.switch,
        "0: glibc gives the memory of freed gradients back to the system (PyTorch, TensorFlow)",
    )
    tensorflow_op: bool = _variable(
        "DDL_TENSORFLOW_OP", True, parse.switch, "0: ddl_tensorflow does without its compiled op; alike on all ranks"
    )

    @classmethod
    def from_environ(cls: Type[_Self], environ: Optional[Mapping[str, str]] = None) -> _Self:
        """Read all fields from ``environ`` (default: ``os.environ``). ConfigError names what makes no sense.

        An empty variable counts as not set.
        """
        source = os.environ if environ is None else environ
        values = {}
        for entry in dataclasses.fields(cls):
            variable = entry.metadata["variable"]
            names: Tuple[Tuple[str, Callable[[str], str]], ...] = ((variable, str), *_HOROVOD.get(variable, ()))
            for name, translated in names:
                text = source.get(name, "")
                if not translated(text):
                    continue
                try:
                    values[entry.name] = entry.metadata["parsed"](translated(text))
                except ValueError as error:
                    raise ConfigError(f"{name}={text!r}: it must be {error}") from error
                break
        return cls(**values)

    @classmethod
    def problem_with(cls, variable: str, text: str) -> str:
        """Return what the value of ``variable`` must be if ``text`` is wrong; "" if it is right, or not ours."""
        entry = next((each for each in dataclasses.fields(cls) if each.metadata["variable"] == variable), None)
        try:
            if entry is not None and text:
                entry.metadata["parsed"](text)
        except ValueError as error:
            return str(error)
        return ""

    @property
    def streams_wait(self) -> bool:
        """Whether streams of the GPU wait for results there, and the host goes on."""
        return self.gpu_wait == "stream"

    def check(self) -> None:
        """Raise ``ConfigError`` where settings contradict one another."""
        for variable, value in (("DDL_ALGORITHM", self.algorithm), ("DDL_WIRE", self.wire)):
            if self.deterministic and value:
                raise ConfigError(
                    f"{variable}={value} would change sums, which depend only on the number of ranks with "
                    f"deterministic=True or DDL_DETERMINISTIC=1; unset one of the two"
                )


def describe(width: int = 100) -> str:
    """Return the table of all settings: variable, default and meaning, in lines of at most ``width`` characters."""
    rows = []
    for entry in dataclasses.fields(Settings):
        default = str(int(entry.default)) if isinstance(entry.default, bool) else f"{entry.default}"
        if isinstance(entry.default, float):
            default = f"{entry.default:g}"
        rows.append((entry.metadata["variable"], default or '""', entry.metadata["meaning"]))
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = []
    for name, default, meaning in rows:
        first = f"{name:{wide[0]}}  {default:{wide[1]}}  "
        lines.append(textwrap.fill(meaning, width, initial_indent=first, subsequent_indent=" " * len(first)))
    return "\n".join(lines)


@dataclass(frozen=True)
class Identity:
    """Who this process is in its job. ``store`` is empty in a job of size 1 that nobody launched.

    ``store_also``: further addresses of the store, on other networks, to be tried when ``store`` does not answer.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    store: str = ""
    secret: bytes = dataclasses.field(default=b"", repr=False)
    store_also: Tuple[str, ...] = ()

    def to_environ(self) -> Dict[str, str]:
        """Return the variables that make ``from_environ`` return this again."""
        values = {name: str(getattr(self, entry)) for entry, name in _NUMBERS.items()}
        return {**values, "DDL_STORE": ",".join((self.store, *self.store_also)), "DDL_SECRET": self.secret.hex()}

    @classmethod
    def from_environ(cls, environ: Optional[Mapping[str, str]] = None) -> Identity:
        """Read who this process is; ConfigError if the variables are incomplete or contradict one another."""
        source = os.environ if environ is None else environ
        names = [*_NUMBERS.values(), "DDL_STORE", "DDL_SECRET"]
        missing = [name for name in names if not source.get(name)]
        if len(missing) == len(names):
            return cls()
        if missing:
            there = [name for name in names if name not in missing]
            shown = ", ".join(name if name == "DDL_SECRET" else f"{name}={source[name]!r}" for name in there)
            raise ConfigError(
                f"{shown} set, but not {', '.join(missing)}; ddlrun sets all of them, "
                "and a program without a launcher needs none"
            )
        numbers = {entry: _number(name, source[name]) for entry, name in _NUMBERS.items()}
        for small, large in (("rank", "size"), ("local_rank", "local_size"), ("cross_rank", "cross_size")):
            if numbers[small] >= numbers[large]:
                raise ConfigError(
                    f"{_NUMBERS[small]}={numbers[small]} must be below {_NUMBERS[large]}={numbers[large]}"
                )
        for part in ("local_size", "cross_size"):
            newcomer = bool(source.get("DDL_INCARNATION"))  # its host may have more slots than the job has ranks
            if numbers[part] > numbers["size"] and not newcomer:
                raise ConfigError(f"{_NUMBERS[part]}={numbers[part]} is more than DDL_SIZE={numbers['size']}")
        store, *also = _store(source["DDL_STORE"])
        return cls(**numbers, store=store, secret=_secret(source["DDL_SECRET"]), store_also=tuple(also))


_NUMBERS = {
    "rank": "DDL_RANK",
    "size": "DDL_SIZE",
    "local_rank": "DDL_LOCAL_RANK",
    "local_size": "DDL_LOCAL_SIZE",
    "cross_rank": "DDL_CROSS_RANK",
    "cross_size": "DDL_CROSS_SIZE",
}


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ConfigError(f"{name}={text!r}: it must be a whole number from 0 up")
    return int(text)


def _store(text: str) -> List[str]:
    addresses = text.split(",")
    try:
        for address in addresses:
            parse_address(address)
    except ValueError:
        raise ConfigError(f"DDL_STORE={text!r}: it must be host:port of the job's store") from None
    return addresses


def _secret(text: str) -> bytes:
    # The value itself is never shown: errors end up in logs.
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) < MINIMUM_SECRET:
        raise ConfigError(
            f"DDL_SECRET (its value is not shown; {len(text)} characters): it must be "
            f"at least {2 * MINIMUM_SECRET} hexadecimal digits"
        )
    return secret
