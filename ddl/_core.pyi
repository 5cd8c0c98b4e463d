"""Signatures of the native core (csrc/python). Private: only ``ddl`` itself imports it."""

from typing import Any, Callable, Dict, Generic, List, Optional, Protocol, Sequence, Set, Tuple, TypeVar

from typing_extensions import Buffer

T = TypeVar("T")

CHANNELS: int
LANE_SMALL: int
LANE_LARGE: int
LANE_POINT_TO_POINT: int
LARGE_SLOTS: int
MOST_HELPERS: int
STREAMS: int
BOARD_WRITING: int
BOARD_STORING: int
BOARD_TAKEN_BACK: int
VERDICT_PATIENCE: float
WORTH_SHARING: int

class SharedBlock(Buffer):
    def __init__(self, bytes: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class PeerMemory:
    def __init__(self, memory_fd: int, bytes: int, socket_fd: int) -> None: ...
    @property
    def alive(self) -> bool: ...
    def close_socket(self) -> None: ...
    def read(self, offset: int, bytes: int) -> bytes: ...

class RecordSession:
    """One end of a connection whose bytes go in records, on a descriptor that must outlive it.

    Of one thread at a time.
    """

    def write(self, data: bytes) -> int:
        """Send what waits, then a record; return how many bytes of data it takes (0: others wait). ``PeerLost``."""
    def read(self, bytes: int) -> bytes:
        """Read what has come, up to so many bytes, without waiting. ``PeerLost`` if it has ended."""
    @property
    def unsent(self) -> bool:
        """Whether something that was written waits until the kernel takes more; any write sends it."""
    @property
    def closed(self) -> bool:
        """Whether it has ended as connections of processes do that end."""
    @property
    def error(self) -> int:
        """The errno by which the kernel has ended it; 0: it has not."""

class ChecksumSession(RecordSession):
    """One whose records have checksums. The core makes its own; this is for tests."""

    def __init__(self, fd: int) -> None: ...

class TlsSession(RecordSession):
    """One that encrypts."""

    def __init__(self, fd: int, server: bool, key: bytes, read_ahead: bool, key_lasts: int = 1 << 36) -> None:
        """Take a ``key`` of 32 bytes, which the other end has, too. ``server``: this end has accepted the connection.

        ``read_ahead``: take all that has come from the kernel at once, for much data; then the descriptor does not know
        of all that can be read. ``key_lasts``: bytes written, after which there is a new key.
        """
    def shake_hands(self) -> bool:
        """Agree with the other end, first of all, as far as that goes without waiting; return whether it is done.

        ``ProtocolError`` if it fails.
        """

class Pieces:
    def __init__(self, flat: Any, numbers: Sequence[int], counts: Sequence[int]) -> None: ...
    def pack(self, arrays: List[Any], /) -> None: ...
    def unpack(self, arrays: List[Any], /) -> None: ...

class Remote:
    """The peer's memory in a step that touches it: the number of its buffer's table, and the blocks."""

    def __init__(self, table: int, blocks: List[int]) -> None: ...

class Step:
    """A step of a plan as the native executor runs it: csrc/engine/plan.h explains the fields."""

    def __init__(
        self,
        *,
        kind: int,
        src: int,
        dst: int,
        final: bool,
        onto: bool,
        after_sends: bool,
        phase: int,
        peers: List[int],
        src_blocks: List[int],
        dst_blocks: List[int],
        remotes: List[Remote],
        pull: bool = False,
    ) -> None: ...

class Plan:
    """A plan as the native executor runs it: csrc/engine/plan.h explains the fields."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        split: bool,
        parts: int,
        tables: List[List[int]],
        own_tables: List[int],
        exposed: List[List[bool]],
        channels: List[List[Step]],
        wire: int = 0,
        only_copied: Sequence[bool] = (False, False, False),
        only_written: Sequence[bool] = (False, False, False),
    ) -> None: ...

class Choice:
    """One line of the selection table: the plan for operations of up to ``max_bytes``, and how it runs.

    ``piece_bytes``: bytes of a piece, of all blocks together; 0: the operation is one piece. ``in_flight``: pieces at a
    time, at most.
    """

    def __init__(
        self, *, max_bytes: int, lane: int, piece_bytes: int, in_flight: int, plan: Plan, name: str = ""
    ) -> None: ...

class Report:
    """What a rank tells its agent: it has lost a peer, an operation has stalled, or the communicator has failed.

    Or a rail to a peer is given up, or is used again.
    """

    @property
    def type(self) -> str:
        """ "lost", "stalled", "failed" or "rail"."""
    @property
    def sequence(self) -> int:
        """The number of the operation; 0: of none."""
    @property
    def kind(self) -> str:
        """The name of the error's class in ``ddl.errors``."""
    @property
    def peer(self) -> int:
        """A rank of the communicator; -1: none."""
    @property
    def reason(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def final(self) -> bool:
        """Whether the deadline has come, so that a verdict must come, too."""
    @property
    def waited(self) -> float:
        """Seconds that the operation has waited, where it has stalled."""
    @property
    def rail(self) -> int:
        """Which rail to the peer; the job goes on over the others."""
    @property
    def works(self) -> bool:
        """Whether the rail is used again."""

class Totals:
    """What the collectives of a communicator have taken so far. Two lanes that work at once count twice."""

    @property
    def operations(self) -> int: ...
    @property
    def waited(self) -> float:
        """Seconds in which operations were under way and nothing moved."""
    @property
    def under_way(self) -> float:
        """Seconds in which operations were under way."""

class Call(Generic[T]):
    """One call of the core, ready to be run or started."""

    def __init__(
        self,
        collective: int,
        input: Any,
        output: Any,
        result: T,
        *,
        op: int = 0,
        root: int = 0,
        part_lengths: Optional[Sequence[int]] = None,
        bytes: int = 0,
        sizes_for: int = 0,
        count_differs: bool = False,
        residual: Any = None,
    ) -> None:
        """``result``: what the caller gets when it has ended.

        ``part_lengths``: elements of each block; None: one buffer. ``bytes``: they choose the plan, so they must be the
        same on all ranks; 0: those of the buffer. ``sizes_for``: this is the exchange of sizes before that collective.
        ``count_differs``: ranks may pass different numbers of elements. ``residual``, of an all-reduce: where coding
        keeps what it drops; float32, as many as in the buffer.
        """
    @property
    def result(self) -> T: ...

class Work(Protocol):  # so that what Python has in its place, ImportingWork, is one, too
    """An operation under way, as the ``_async`` verbs return it. Any thread may use it."""

    def done(self) -> bool:
        """Return whether it has ended, well or not. Does not block."""
    def wait(self, timeout: Optional[float] = None) -> Any:
        """Wait until it has ended and return its result.

        ``timeout``: seconds; None waits for the operation's own deadline (DDL_TIMEOUT). Raises ``WaitTimeout`` if it
        ran out (the operation goes on), or the error that the operation ended with.
        """
    def can_wait_on(self) -> bool:
        """Return whether ``wait_on`` can. Without effect."""
    def wait_on(self, stream: int) -> bool:
        """Let a stream of the array's GPU wait for the result, and return True without blocking (DDL_GPU_WAIT=stream).

        False: only ``wait`` can. ``stream``: the driver's handle. If the operation fails later, the stream goes on with
        an undefined result, and the next call raises the error.
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
        recorded: int = 64,
        read_from: int = -1,
        checksums: bool = False,
    ) -> None: ...
    def introduce(
        self, who: str, rank_names: Sequence[str], communicator: int = 0, ranks: Sequence[int] = ()
    ) -> None: ...
    @property
    def board_offset(self) -> int: ...
    def add_neighbour(self, rank: int, memory: PeerMemory, board_offset: int) -> None: ...
    def stuck(self) -> List[Tuple[int, int]]:
        """Ranks and process ids (0: unknown) that are stopped amid stores to memory of others, maybe this rank's.

        Where no operation has failed here, none. Blocking: waits for stores of ranks that are not stopped.
        """
    def deserted(self) -> bool:
        """Whether no neighbour will touch this rank's memory: each has shut down its communicator, or has ended."""
    def set_rails(self, rails: int) -> None: ...
    def set_silence(self, seconds: float) -> None:
        """Take peers for silent from which nothing has come for so long, though something was sent. At first, none."""
    def set_helpers(self, helpers: int) -> None:
        """Have so many threads of this process help with large reductions and copies, until ``shutdown``."""
    @property
    def timeout(self) -> float: ...
    def set_timeout(self, seconds: float) -> None: ...
    def tend(self) -> None: ...
    @property
    def silent_peers(self) -> List[int]:
        """The ranks to which nothing has got through for so long, as it was seen last: sent bytes, or connections."""
    def note_unreachable(self, peer: int, unreachable: bool) -> None:
        """Say whether connections to ``peer`` cannot be made, since its host does not answer."""
    def add_connection(self, peer: int, number: int, fd: int, tls: Optional[TlsSession] = None) -> None:
        """Take over a connected socket; ``tls``, on the same descriptor, encrypts what goes over it."""
    def connected(self, peer: int, number: int) -> bool: ...
    def set_planner(self, planner: Optional[Callable[[int, int], None]]) -> None: ...
    def install(self, collective: int, root: int, choices: Sequence[Choice]) -> None: ...
    def replace(self, collective: int, root: int, choices: Sequence[Choice]) -> None:
        """Have other plans used from now on: on all ranks from the same operation on."""
    def set_milestone(self, submitted: int, function: Callable[[], None]) -> None:
        """Call ``function`` once, before the first collective that is called after so many were submitted."""
    def call(self, collective: int, input: Any, output: Any, op: int, root: int = 0, /) -> None:
        """Make a blocking call whose arrays say all of the sizes: the fastest way."""
    def prepare(self, collective: int, buffer: Any, op: int, name: str, residual: Any, /) -> PreparedOperation: ...
    def run(self, call: Call[T], label: str = "") -> T: ...
    def start(self, call: Call[Any], label: str = "") -> Work: ...
    def attempt(self, call: Call[Any]) -> Optional[Work]:
        """Run a call whose arrays say all of the sizes. Where it would have to sleep, return what goes on instead."""
    def check(self) -> None: ...
    @property
    def failed(self) -> bool: ...
    @property
    def report_fd(self) -> int: ...
    def set_agent(self, listening: bool) -> None: ...
    def take_report(self) -> Optional[Report]: ...
    def fail(self, kind: str, culprit: int, reason: str, tell: bool) -> None: ...
    def note_departure(self, peer: int) -> None: ...
    def traffic(self) -> Tuple[int, int]: ...
    def collectives(self) -> Totals: ...
    @property
    def submitted(self) -> int: ...
    def operation_text(self, sequence: int) -> str: ...
    def call_text(self, sequence: int) -> str:
        """Return ``operation_text`` for people, with the number and the label."""
    def sleepers(self) -> List[Tuple[int, int, int]]:
        """Return the threads that sleep until an operation ends, its number (0: a message), and which rank it needs.

        -1: all; below: not known.
        """
    def awaits_gpu(self, sequence: int) -> bool: ...
    @property
    def in_use(self) -> bool: ...
    @property
    def address(self) -> int:
        """What ``NATIVE_CALLS`` take as their communicator."""
    def shutdown(self) -> None: ...

#: The address of the calls for libraries that are no Python: csrc/python/native_calls.h.
NATIVE_CALLS: int

def configure_arena(bytes: int) -> bool: ...
def configure_gpu_driver(library: str, waits_on_gpu: bool) -> None: ...

class GpuDriverState:
    """Whether there is a driver of GPUs that can be used. ``problem``: why not, or empty."""

    version: int  #: the newest CUDA that it knows, 1000 * major + 10 * minor; 0: not known
    count: int  #: of GPUs that this process sees
    problem: str
    missing: bool  #: there is no such library

class GpuDescription:
    """What the driver says of a GPU. Numbers that it does not know are -1."""

    name: str
    pci_address: str
    memory_bytes: int
    major: int
    minor: int
    copy_engines: int
    compute_mode: int  #: 0: for all processes, 2: for none, 3: for one at a time
    numa_node: int

class MeasuredGpu:
    """What copies between a GPU and the arena reach, in bytes per second: each direction alone, then both at once."""

    down: float
    up: float
    both_down: float
    both_up: float
    registering: float  #: of memory; 0: refused
    refusal: str
    words_problem: str  #: why streams cannot write words; empty: they can

def survey_gpu_driver() -> GpuDriverState: ...
def describe_gpu(device: int) -> GpuDescription:
    """Raises ``ResourceError``, which names the GPU, if it has failed."""

def measure_gpu(device: int, piece_bytes: int, sample: float, patience: float) -> MeasuredGpu:
    """Copies for ``sample`` seconds, three times.

    Raises ``ResourceError``, which names the GPU, if it fails, or if nothing ends for ``patience`` seconds.
    """

class GpuMemory:
    """Contiguous memory on a GPU, for one call, with the stream behind which it may be read and written."""

    def __init__(self, address: int, count: int, dtype: str, stream: int, owner: Any) -> None:
        """``address``: of ``count`` elements of ``dtype``: "float32", "complex64".

        ``stream``: the driver's handle of what has produced it; 0: the legacy stream. ``owner``: lives until the GPU
        has used it.
        """

def describe_arrays_of(type: type, function: Callable[[Any], Any]) -> None:
    """Have ``function(array)`` say what an array of ``type`` is, where DLPack does not tell it well.

    That is asked of arrays on a GPU, and of what is not given out. It returns a ``GpuMemory``, another array with the
    same memory, or None: then DLPack's word counts.
    """

def describe_host_arrays_of(
    type: type, function: Optional[Callable[[Any], Optional[Tuple[Any, int, int, int]]]]
) -> None:
    """Have ``function(array)`` say where an array of exactly that ``type`` is in the host's memory.

    It returns what keeps the memory alive, its address, the number of elements, and ``element_number`` of their type;
    or None: then DLPack is asked, which takes microseconds. The memory is contiguous and may be written. Where
    ``function`` is None, the array is itself such a tuple.
    """

def element_number(name: str) -> int:
    """Return the number of an element type, "float32" or "complex64". ``InvalidArgument`` if there is none."""

class GpuBlock:
    """Memory of a GPU that DDL itself allocates."""

    def __init__(self, device: int, bytes: int) -> None:
        """Raises ``ResourceError``, which names the GPU."""
    @property
    def device(self) -> int: ...
    def capsule(self, shape: Sequence[int], type_code: int, bits: int) -> Any:
        """Return it as DLPack wants it, with DLPack's number of the type; the capsule keeps it alive."""
    @property
    def address(self) -> int: ...
    def write(self, values: Any) -> None:
        """Copy as many bytes as it has from a contiguous array of the host; return when they are there."""
    def read(self, values: Any) -> None:
        """Copy them to a contiguous array of the host; return when they are there."""

def record_identity(json: str) -> None: ...
def collectives() -> List[Tuple[int, str, str, str, str, str, bool, bool]]:
    """What the core knows of each collective, for the test that compares it with ddl/plan/collectives.py."""

def note_step() -> None: ...
def throwing_collectives(reduce_scatter: int, allgather: int, raise_error: int) -> Tuple[int, int]:
    """Return the addresses of functions that call those at these addresses, on this thread, and throw if they fail."""

def shift_clock(by: float) -> None:
    """Let the core's clock jump ahead by so many seconds. For tests."""

def record_layout() -> Dict[str, int]: ...
def crc32c(data: bytes, before: int = 0, by_table: bool = False) -> int:
    """Return the CRC-32C of bytes behind others whose sum is ``before``; ``by_table``: without the processor's own."""

def relay(session: TlsSession, encrypted: int, plain: int) -> str:
    """Carry bytes between a session, on the descriptor ``encrypted``, and the socket ``plain``, until one of them ends.

    Blocking. Returns why the session has ended; empty: ``plain`` was closed, and what was written to it has gone.
    """

def load_openssl(path: str) -> None:
    """Load what encrypts, once; empty: the libssl that Python uses. ``ResourceError`` says what is missing."""

def arena_fd() -> int: ...
def arena_bytes() -> int: ...
def arena_used() -> int: ...
def kernel_reads() -> Tuple[int, int]:
    """Return from how many bytes on it pays to have the kernel read a rank's private memory (2**64 - 1: never), and
    how many bytes this process has read so.
    """

def kernel_writes() -> int:
    """Return how many bytes this process has had the kernel write to private memory of other ranks."""

def arena_offset(buffer: Any) -> int: ...
def submitters() -> Set[int]:
    """Return the identifiers of threads that have submitted an operation; some may have ended."""

def stream_of(slot: int, channel: int) -> int: ...
def reduce_arrays(
    dtype: str, op: str, dsts: Sequence[Any], srcs: Sequence[Any], divisor: int = 1, kernels: Optional[str] = None
) -> None: ...
def reduce_kernels() -> List[str]: ...
def helpers() -> Tuple[int, int]:
    """Return how many threads help with large reductions and copies here, and how many parts they have taken."""

def copy_bytes(dst: Any, src: Any, streaming: bool = False, kernels: Optional[str] = None) -> None: ...
def encode_floats(codec: int, coded: Any, floats: Any, kernels: Optional[str] = None, residual: Any = None) -> None: ...
def decode_floats(codec: int, floats: Any, coded: Any, kernels: Optional[str] = None) -> None: ...
def add_encoded(
    codec: int,
    sum: Any,
    own: Any,
    coded: Any,
    divisor: int = 1,
    finish: bool = False,
    kernels: Optional[str] = None,
    residual: Any = None,
) -> None: ...
