"""``NcclAllreduce``: all-reduces of arrays on GPUs, by NCCL within each host and by DDL between the hosts.

For servers with several GPUs: GPUs add up far more in a second than the cores do. Each of the p ranks of a host has a
GPU of its own. NCCL's reduce-scatter leaves each of them with the host's sum of one part in p. The ranks that have the
same part on all hosts average it among themselves, so only 1/p of the bytes come down and go over the network from each
rank. NCCL's all-gather ends it. All is queued by the thread that makes the call, and a stream waits for DDL's part, so
that NCCL is called in the order of the program, as it demands.

What is left over where the length does not divide goes by an all-reduce of its own over all ranks. It is never empty,
and it is queued behind NCCL's work: as long as NCCL works, DDL has an operation with every rank under way, and so finds
out if one is lost or does not come. Then NCCL is aborted, for nothing else ends what its kernels wait for.

It is used with ``DDL_NCCL=1``, where it can be, for arrays that an adapter passes (``GpuMemory``). All ranks then pass
such arrays, in the same order. What is smaller than ``LEAST_BYTES``, and what NCCL does not know, goes the usual way.
"""

from __future__ import annotations

import collections
import importlib.util
import logging
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Deque, Dict, List, Optional, Protocol, Sequence, Set, Tuple

from ddl import _core
from ddl.errors import Error, InvalidArgument
from ddl.plan.ir import Collective
from ddl.reduce_op import ReduceOp
from ddl.topology import Topology

__all__ = ["LEAST_BYTES", "NcclAllreduce", "NcclWork"]

log = logging.getLogger("ddl")

LEAST_BYTES = 256 << 10  #: of an array; smaller ones are faster by themselves
_ALIGNMENT = 64  #: bytes: parts begin on cache lines
_LOOK = 0.05  #: seconds between two looks at whether what is under way can still end


class NcclRanks(Protocol):
    """What is needed of a ``Communicator``."""

    _core: _core.Communicator
    rank: int

    @property
    def topology(self) -> Topology:
        """How its ranks are laid out."""

    @property
    def deterministic(self) -> bool:
        """Whether the order of adding up is given."""

    @property
    def wire(self) -> str:
        """What float32 is written as between hosts."""

    @property
    def timeout(self) -> float:
        """Seconds that an operation may take."""

    def allgather_object(self, obj: Any) -> List[Any]:
        """Return the objects of all ranks."""

    def _split(self, color: Optional[int]) -> Any:
        """Return the ranks of the same color."""


class NcclWork:
    """An all-reduce under way; to a caller, a ``ddl.Work``."""

    def __init__(self, works: Sequence[_core.Work], result: Any) -> None:
        self._works, self._result = works, result

    def done(self) -> bool:
        """Return whether it has ended, well or not. Does not block."""
        return all(work.done() for work in self._works)

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Wait until it has ended and return its result; see ``ddl.Work``."""
        until = None if timeout is None else time.monotonic() + timeout
        for work in self._works:
            work.wait(None if until is None else max(0.0, until - time.monotonic()))
        return self._result

    def can_wait_on(self) -> bool:
        """Return whether ``wait_on`` can; see ``ddl.Work``."""
        return all(work.can_wait_on() for work in self._works)

    def wait_on(self, stream: int) -> bool:
        """Let a stream wait for the result; see ``ddl.Work``."""
        return all([work.wait_on(stream) for work in self._works])


class NcclAllreduce:
    """The all-reduces of one communicator, whose ranks all have one: see ``choose``."""

    def __init__(self, communicator: NcclRanks, library: str) -> None:
        self._communicator = weakref.ref(communicator)
        self._library = library
        self._tried = False
        self._device = -1
        self._group: Optional[_core.NcclGroup] = None
        self._between: Optional[NcclRanks] = None  # the ranks with the same part, on all hosts
        self._size, self._index = 1, 0  # of the group, and in it
        self._watch: Optional[_Watch] = None
        self._agreed: Set[Tuple[int, str, int]] = set()
        self._kept: List[Any] = []  # arrays that NCCL may still use

    @staticmethod
    def choose(communicator: NcclRanks, library: str) -> Optional[NcclAllreduce]:
        """Return it, if the ranks could use it: several share a host, and sums may be added up in any order."""
        topology = communicator.topology
        # With int8, what a rank drops is kept of its own gradient; here a host's sum would be written so.
        fits = topology.local_size > 1 and not communicator.deterministic and communicator.wire != "int8"
        return NcclAllreduce(communicator, library) if fits else None

    def start(self, call: _core.Call[Any], label: str) -> Optional[NcclWork]:
        """Queue the all-reduce of a call and return it. Returns None, on every rank, if NCCL does not apply.

        Collective; the first time it blocks, until the ranks have told one another what they have.
        """
        memory = call.input
        if not isinstance(memory, _core.GpuMemory) or call.output is not memory:
            return None
        itemsize = _ITEMSIZES[memory.dtype]
        if memory.count * itemsize < LEAST_BYTES or not _core.Nccl.knows(memory.dtype, call.op):
            return None
        if not self._tried:
            self._tried = True
            self._set_up(memory.device)
        if self._group is None:
            return None
        if memory.device != self._device:
            raise InvalidArgument(
                f"allreduce: the array is on GPU {memory.device}, but this rank's earlier ones were on GPU "
                f"{self._device}; with DDL_NCCL=1 a rank uses one GPU"
            )
        communicator = self._communicator()
        assert communicator is not None
        self._agree(communicator, memory, call.op)
        for each in (communicator, self._between):
            if each is not None:
                each._core.check()
        self._group.follow(memory.stream)
        try:
            return self._queue(communicator, self._group, call, memory, itemsize, label)
        except BaseException as error:
            # The others have queued their part, and wait for this rank's. NCCL may use the array until the end.
            self._kept.append(memory.owner)
            self._group.abort()
            communicator._core.fail("ResourceError", communicator.rank, f"allreduce by NCCL: {error}", True)
            raise

    def _agree(self, communicator: NcclRanks, memory: _core.GpuMemory, op: int) -> None:
        """Compare with the other ranks what is all-reduced, before NCCL gets it: NCCL would hang, or write nonsense.

        Once for each length, type and operator, as training repeats them. Collective and blocking then.
        """
        kind = (memory.count, memory.dtype, op)
        if kind in self._agreed:
            return
        told = communicator.allgather_object(list(kind))
        for rank, other in enumerate(told):
            if other != told[0]:
                first, theirs = (f"{count} x {dtype}, {ReduceOp(op).name}" for count, dtype, op in (told[0], other))
                text = f"allreduce: rank 0 called it for {first}, but rank {rank} for {theirs}"
                communicator._core.fail("CollectiveMismatch", -1, text, True)
                communicator._core.check()
        self._agreed.add(kind)

    def _queue(
        self,
        communicator: NcclRanks,
        group: _core.NcclGroup,
        call: _core.Call[Any],
        memory: _core.GpuMemory,
        itemsize: int,
        label: str,
    ) -> NcclWork:
        unit = max(1, _ALIGNMENT // itemsize) * self._size
        share = (memory.count - 1) // unit * unit // self._size  # something is always left
        whole = share * self._size
        group.reduce_scatter(memory.address, share, memory.dtype, call.op)
        works: List[_core.Work] = []
        if self._between is not None:
            own = self._part(memory, group, self._index * share, share, itemsize)
            work = _started(self._between, own, call.op, label)
            works.append(work)
            if not work.wait_on(group.stream):
                work.wait()  # an older driver, on which no stream can wait
        group.all_gather(memory.address, share, memory.dtype)
        rest = self._part(memory, group, whole, memory.count - whole, itemsize)
        works.append(_started(communicator, rest, call.op, label))
        assert self._watch is not None
        self._watch.add(works)
        return NcclWork(works, call.result)

    @staticmethod
    def _part(
        memory: _core.GpuMemory, group: _core.NcclGroup, start: int, count: int, itemsize: int
    ) -> _core.GpuMemory:
        return _core.GpuMemory(memory.address + start * itemsize, count, memory.dtype, group.stream, memory.owner)

    # --- the first time ---

    def _set_up(self, device: int) -> None:
        """Find out with all ranks whether NCCL can be used, and make its groups. Collective, blocking."""
        communicator = self._communicator()
        assert communicator is not None
        topology = communicator.topology
        hosts = [topology.order[i : i + topology.local_size] for i in range(0, topology.size, topology.local_size)]
        host = next(ranks for ranks in hosts if communicator.rank in ranks)
        nccl, own = self._load(device)
        told: List[Dict[str, Any]] = communicator.allgather_object(own)
        problem = _problem(told, hosts)
        if problem:
            self._tell(communicator, problem)
            return
        assert nccl is not None
        self._size, self._index = len(host), host.index(communicator.rank)
        identifier = told[host[0]]["id"]
        group, failed = None, ""
        try:
            # In half of the time: a rank that fails at once waits for the others below.
            patience = communicator.timeout / 2
            group = _core.NcclGroup(nccl, identifier, self._size, self._index, device, patience)
        except Error as error:
            failed = str(error)
        failures = [text for text in communicator.allgather_object(failed) if text]
        if failures:
            if group is not None:
                group.abort()
            self._tell(communicator, failures[0])
            return
        if len(hosts) > 1:
            self._between = communicator._split(self._index)
        self._group, self._device = group, device
        self._watch = _Watch(communicator, self._between, group)

    def _load(self, device: int) -> Any:
        """Return the library, None without one, and what this rank tells the others."""
        own: Dict[str, Any] = {"problem": "", "gpu": "", "version": 0, "id": b""}
        try:
            nccl = _core.Nccl(self._library, _library_of_wheel())
            own.update(gpu=_core.describe_gpu(device).pci_address, version=nccl.version, id=nccl.make_id())
            return nccl, own
        except Error as error:
            own["problem"] = str(error)
            return None, own

    @staticmethod
    def _tell(communicator: NcclRanks, problem: str) -> None:
        if communicator.rank == 0:
            log.warning("NCCL is not used, although DDL_NCCL=1 says so: %s; DDL adds up on the cores", problem)


class _Watch:
    """A thread that aborts NCCL if what is under way cannot end any more. It sleeps while nothing is."""

    def __init__(self, communicator: NcclRanks, between: Optional[NcclRanks], group: Optional[_core.NcclGroup]) -> None:
        assert group is not None
        self._cores = [each._core for each in (communicator, between) if each is not None]
        self._rank = communicator.rank
        self._group = group
        self._under_way: Deque[Sequence[_core.Work]] = collections.deque()
        self._lock = threading.Lock()
        self._running = False

    def add(self, works: Sequence[_core.Work]) -> None:
        """Look after ``works`` until they have ended."""
        with self._lock:
            self._under_way.append(works)
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="ddl-nccl", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_LOOK)
            with self._lock:
                while self._under_way and all(work.done() for work in self._under_way[0]):
                    self._under_way.popleft()
                if not self._under_way:
                    self._running = False
                    return
            problem = "" if any(core.failed for core in self._cores) else self._group.problem()
            if problem:
                self._cores[0].fail("ResourceError", self._rank, problem, True)
            if any(core.failed for core in self._cores):
                self._group.abort()
                for core in self._cores:
                    if not core.failed:
                        core.fail("Aborted", self._rank, "an all-reduce that needs NCCL within the hosts failed", True)
                with self._lock:
                    self._under_way.clear()
                    self._running = False
                return


_ITEMSIZES = {
    **{"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "bool": 1},
    **{f"{kind}{8 * size}": size for kind in ("int", "uint") for size in (1, 2, 4, 8)},
}


def _started(communicator: NcclRanks, memory: _core.GpuMemory, op: int, label: str) -> _core.Work:
    return communicator._core.start(_core.Call(Collective.ALLREDUCE, memory, memory, None, op=op), label)


def _problem(told: Sequence[Dict[str, Any]], hosts: Sequence[Sequence[int]]) -> str:
    """Return why NCCL cannot be used, the same on all ranks, or an empty text."""
    for rank, own in enumerate(told):
        if own["problem"]:
            return f"rank {rank}: {own['problem']}"
    for ranks in hosts:
        gpus: Dict[str, int] = {}
        for rank in ranks:
            gpu = told[rank]["gpu"]
            if gpu in gpus:
                return f"ranks {gpus[gpu]} and {rank} of one host share the GPU at {gpu}; give each rank its own"
            gpus[gpu] = rank
        versions = {told[rank]["version"] for rank in ranks}
        if len(versions) > 1:
            return f"ranks {list(ranks)} of one host have different versions of NCCL: {sorted(versions)}"
    return ""


def _library_of_wheel() -> str:
    """Return the path of NCCL in the package ``nvidia-nccl``, which comes with torch; empty: there is none."""
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return ""
    folders = [] if package is None else list(package.submodule_search_locations or [])
    paths = [Path(folder) / "lib" / "libnccl.so.2" for folder in folders]
    return next((str(path) for path in paths if path.exists()), "")
