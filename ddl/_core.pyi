"""Signatures of the native core (csrc/python). Private: only ``ddl`` itself imports it."""

from typing import Any, Callable, List, Optional, Sequence, Tuple

from typing_extensions import Buffer

CHANNELS: int
LANE_SMALL: int
LANE_LARGE: int
LANE_POINT_TO_POINT: int
LARGE_SLOTS: int
STREAMS: int

class SharedBlock(Buffer):
    def __init__(self, bytes: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class PeerMemory:
    def __init__(self, memory_fd: int, bytes: int, socket_fd: int) -> None: ...
    @property
    def alive(self) -> bool: ...
    def close_socket(self) -> None: ...
    def read(self, offset: int, bytes: int) -> bytes: ...

_Step = Tuple[int, int, int, bool, bool, int, List[int], List[int], List[int], List[Tuple[int, List[int]]]]

class Plan:
    def __init__(
        self,
        *,
        rank: int,
        size: int,
        split: bool,
        parts: int,
        tables: List[List[int]],
        mine: List[int],
        exposed: List[List[bool]],
        channels: List[List[_Step]],
        wire: int = 0,
    ) -> None: ...

class Work:
    """An operation under way, as the ``_async`` verbs return it. Any thread may use it."""

    def done(self) -> bool:
        """Return whether it has ended, well or not. Does not block."""
    def wait(self, timeout: Optional[float] = None) -> Any:
        """Wait until it has ended and return its result.

        ``timeout``: seconds; None waits for the operation's own deadline (DDL_TIMEOUT). Raises ``WaitTimeout`` if it
        ran out (the operation goes on), or the error that the operation ended with.
        """

class PreparedOperation:
    """A collective on a buffer, ready to be called again and again: see ``Communicator.prepare_allreduce``."""

    @property
    def buffer(self) -> Any:
        """What it works on, and returns."""
    def __call__(self) -> Any: ...

class Communicator:
    def __init__(
        self,
        *,
        rank: int,
        size: int,
        timeout: float,
        spin_us: float,
        yield_us: float,
        connections: int = 1,
        rails: int = 1,
    ) -> None: ...
    def introduce(self, who: str, rank_names: Sequence[str]) -> None: ...
    @property
    def board_offset(self) -> int: ...
    def add_neighbour(self, rank: int, memory: PeerMemory, board_offset: int) -> None: ...
    def set_rails(self, rails: int) -> None: ...
    def set_timeout(self, seconds: float) -> None: ...
    def tend(self) -> None: ...
    def add_connection(self, peer: int, number: int, fd: int) -> None: ...
    def connected(self, peer: int, number: int) -> bool: ...
    def set_planner(self, planner: Optional[Callable[[int, int], None]]) -> None: ...
    def install(self, collective: int, root: int, choices: Sequence[Tuple[int, int, int, int, Plan]]) -> None: ...
    def allreduce(self, input: Any, output: Any, op: int, /) -> None: ...
    def run_alike(self, collective: int, input: Any, output: Any, op: int, root: int, /) -> None: ...
    def prepare(self, collective: int, buffer: Any, op: int, name: str, residual: Any, /) -> PreparedOperation: ...
    def run(
        self,
        collective: int,
        input: Any,
        output: Any,
        *,
        op: int = 0,
        root: int = 0,
        part_lengths: Optional[Sequence[int]] = None,
        bytes: int = 0,
        sizes_for: int = 0,
        count_differs: bool = False,
        label: str = "",
        result: Any = None,
        residual: Any = None,
    ) -> Any: ...
    def start(
        self,
        collective: int,
        input: Any,
        output: Any,
        *,
        op: int = 0,
        root: int = 0,
        part_lengths: Optional[Sequence[int]] = None,
        bytes: int = 0,
        sizes_for: int = 0,
        count_differs: bool = False,
        label: str = "",
        result: Any = None,
        residual: Any = None,
    ) -> Work: ...
    def check(self) -> None: ...
    @property
    def failed(self) -> bool: ...
    @property
    def report_fd(self) -> int: ...
    def set_agent(self, listening: bool) -> None: ...
    def take_report(self) -> Optional[Tuple[str, int, str, int, str, str, bool]]: ...
    def fail(self, kind: str, culprit: int, reason: str, tell: bool) -> None: ...
    def traffic(self) -> Tuple[int, int]: ...
    def collectives(self) -> Tuple[int, float, float]: ...
    @property
    def submitted(self) -> int: ...
    def operation_text(self, sequence: int) -> str: ...
    def shutdown(self) -> None: ...

def configure_arena(bytes: int) -> bool: ...
def arena_fd() -> int: ...
def arena_bytes() -> int: ...
def arena_used() -> int: ...
def arena_offset(buffer: Any) -> int: ...
def stream_of(slot: int, channel: int) -> int: ...
def reduce_arrays(
    dtype: str, op: str, dsts: Sequence[Any], srcs: Sequence[Any], divisor: int = 1, kernels: Optional[str] = None
) -> None: ...
def reduce_kernels() -> List[str]: ...
def copy_bytes(dst: Any, src: Any, streaming: bool = False, kernels: Optional[str] = None) -> None: ...
def encode_floats(codec: int, coded: Any, floats: Any, kernels: Optional[str] = None, residual: Any = None) -> None: ...
def decode_floats(codec: int, floats: Any, coded: Any, kernels: Optional[str] = None) -> None: ...
def add_encoded(
    codec: int,
    sum: Any,
    mine: Any,
    theirs: Any,
    divisor: int = 1,
    finish: bool = False,
    kernels: Optional[str] = None,
    residual: Any = None,
) -> None: ...
