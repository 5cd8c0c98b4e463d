"""Private arrays that the kernel copies from one rank to another: right values, and what happens where it cannot.

That nothing is written late is for test_kernel_write.py.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.faults import STRIKES, strike_after, struck_at

import ddl
from ddl import _core
from ddl.bootstrap.environ import Settings

pytestmark = pytest.mark.processes

FROM_ONE_BYTE = {"DDL_READ_FROM": "1"}
LIBC = ctypes.CDLL(None, use_errno=True)


def own(n: int, dtype: Any = np.float32) -> Any:
    """Return ``n`` private numbers that differ by rank and place; they begin in the middle of a cache line."""
    return np.concatenate([np.zeros(3, dtype), (np.arange(n) % 100 + 100 * ddl.rank()).astype(dtype)])[3:]


def read_by_kernel(before: int = 0) -> int:
    return _core.kernel_reads()[1] - before


def verbs(lengths: List[int]) -> Tuple[List[Any], int]:
    """Run each verb whose data others only copy, on private arrays; return the results, and how much was read so."""
    ddl.barrier()  # connects: to find out whether one can read another's memory is a read, too
    before, results = read_by_kernel(), []
    for n in lengths:
        for dtype in (np.uint8, np.float32, np.complex128):
            x, root = own(n, dtype), n % ddl.size()
            out = np.empty(n * ddl.size(), dtype)
            results += [ddl.broadcast(x, root=root), ddl.allgather(x), ddl.allgather(x, out=out), out]
            results.append(ddl.allgather(own(n + ddl.rank(), dtype)))
            results.append(ddl.alltoall(own(n * ddl.size(), dtype)))
            results.append(ddl.scatter(own(n * ddl.size(), dtype) if ddl.rank() == root else None, root=root))
            results.append(ddl.broadcast_(own(n, dtype), root=root))
    return [np.asarray(result).copy() for result in results], read_by_kernel(before)


@pytest.mark.few(2)
@pytest.mark.parametrize(("size", "helped"), [(2, ""), (3, "3"), (2, "3"), pytest.param(5, "", marks=pytest.mark.slow)])
def test_the_values_are_those_that_shared_memory_brings(size: int, helped: str) -> None:
    lengths = [1, 5000, 150_001]
    cores = {"DDL_CORES": helped} if helped else {}
    by_kernel = ranks.run(size, verbs, lengths, env={**FROM_ONE_BYTE, **cores})
    shared = ranks.run(size, verbs, lengths, env={"DDL_READ_FROM": "0"})
    for (results, read), (expected, read_without) in zip(by_kernel, shared):
        assert read_without == 0
        assert read > lengths[-1] * 16
        for result, value in zip(results, expected):
            np.testing.assert_array_equal(result, value)


def test_only_blocks_from_that_size_on() -> None:
    assert [read for _, read in ranks.run(2, verbs, [100], env={"DDL_READ_FROM": "64K"})] == [0, 0]


def arrays_in_shared_memory() -> int:
    ddl.barrier()
    before = read_by_kernel()
    x = ddl.empty(50_000, np.float32)
    x[:] = ddl.rank()
    assert ddl.broadcast(x, root=1)[-1] == 1
    assert ddl.allreduce(np.ones(50_000), op=ddl.Sum)[0] == ddl.size()  # what others reduce must be in shared memory
    return read_by_kernel(before)


def test_what_others_can_reach_is_not_read_so() -> None:
    assert ranks.run(2, arrays_in_shared_memory, env=FROM_ONE_BYTE) == [0, 0]


def private_and_shared(who: List[int], n: int) -> Tuple[bool, int, int]:
    """Broadcast from rank 0; the arrays of ``who`` are private. Return how much a call has read and written."""
    ddl.barrier()
    before, written_before = read_by_kernel(), _core.kernel_writes()
    x = np.empty(n, np.float32) if ddl.rank() in who else ddl.empty(n, np.float32)
    right = True
    for turn in range(3):
        x[:] = np.arange(n) % 1000 + 1000 * (ddl.rank() + 3 * turn)
        ddl.broadcast_(x, root=0)
        right &= bool((x == np.arange(n) % 1000 + 3000 * turn).all())
    read, written = read_by_kernel(before) // 3, (_core.kernel_writes() - written_before) // 3
    return right and bool((ddl.broadcast(x + ddl.rank(), root=0) == x).all()), read, written


WHO = pytest.mark.parametrize("who", [[], [0], [1], [0, 1], [0, 1, 2], [0, 2]], ids=str)


@WHO
def test_a_broadcast_between_private_and_shared_arrays(who: List[int]) -> None:
    """What the root would have to write to staging, a rank reads itself; each pair of ranks for itself."""
    n = 15_000
    chunk = 4 * n // 3  # the root writes the first one, and the others read the rest
    answers = ranks.run(3, private_and_shared, who, n, env=FROM_ONE_BYTE)
    assert all(right and written == 0 for right, _, written in answers)
    for rank in (1, 2):
        read = 0 if 0 not in who else 3 * chunk if rank in who else 2 * chunk
        assert abs(answers[rank][1] - read) <= 128, (rank, answers)  # chunks begin on cache lines


@WHO
@pytest.mark.parametrize("n", [30_000, pytest.param(1_000_000, id="several pieces")])
def test_from_64_kib_on_the_root_writes_its_share(who: List[int], n: int) -> None:
    chunk, slack = 4 * n // 3, 128 * (1 + 4 * n // (1 << 20))  # chunks begin on cache lines, in each piece
    answers = ranks.run(3, private_and_shared, who, n, env=FROM_ONE_BYTE)
    assert all(right for right, _, _ in answers)
    private = [rank for rank in (1, 2) if rank in who and 0 in who]
    assert abs(answers[0][2] - chunk * len(private)) <= 2 * slack, answers
    for rank in (1, 2):
        assert abs(answers[rank][1] - (2 * chunk if 0 in who else 0)) <= slack, (rank, answers)
        assert answers[rank][2] == 0


@WHO
@pytest.mark.parametrize("n", [50_000, pytest.param(2_500_000, id="staged a piece ahead")])
def test_ranks_that_take_turns_on_cores_go_by_staging(who: List[int], n: int) -> None:
    assert ranks.run(3, private_and_shared, who, n, env={"DDL_SPIN_US": "0"}) == [(True, 0, 0)] * 3


def across_hosts(n: int) -> Tuple[bool, int]:
    ddl.barrier()
    before = read_by_kernel()
    gathered = ddl.allgather(own(n))
    right = all((gathered[r * n : (r + 1) * n] == np.arange(n) % 100 + 100 * r).all() for r in range(ddl.size()))
    return bool(right), read_by_kernel(before)


def test_ranks_on_several_hosts() -> None:
    answers = ranks.run(4, across_hosts, 50_000, env=FROM_ONE_BYTE, env_of=lambda r: {"DDL_HOST_ID": f"h{r // 2}"})
    assert [right for right, _ in answers] == [True] * 4


# --- where the kernel refuses ---


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def cannot_be_read_by_others() -> None:
    """Give up the right to trace others, and do not let others trace this process."""
    header, sets = _Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert LIBC.capget(ctypes.byref(header), sets) == 0
    bit = 1 << 19  # CAP_SYS_PTRACE
    sets[0] &= ~bit
    sets[1] &= ~bit
    assert LIBC.capset(ctypes.byref(header), sets) == 0
    assert LIBC.prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE


def without_rights(who: List[int], n: int) -> Tuple[float, int]:
    if int(os.environ["DDL_RANK"]) in who:
        cannot_be_read_by_others()
    ddl.init()
    ddl.barrier()
    before = read_by_kernel()
    for root in range(ddl.size()):
        assert ddl.broadcast(np.full(n, ddl.rank(), np.float32), root=root)[-1] == root
    return float(ddl.allgather(np.full(n, ddl.rank(), np.float32)).sum()), read_by_kernel(before)


@pytest.mark.parametrize("who", [[0, 1, 2], [1]])
def test_ranks_that_may_not_read_one_another(who: List[int]) -> None:
    n = 30_000
    answers = ranks.run(3, without_rights, who, n, initialise=False, env=FROM_ONE_BYTE)
    assert [total for total, _ in answers] == [3.0 * n] * 3
    if len(who) == 3:
        assert [read for _, read in answers] == [0, 0, 0]


def secret_memory(bytes_: int) -> Any:
    """Return memory that only this process can read, and not even the kernel for others; None: there is none."""
    fd = LIBC.syscall(447, 0)  # memfd_secret
    if fd < 0:
        return None
    os.ftruncate(fd, bytes_)
    return mmap.mmap(fd, bytes_)


def from_secret_memory(n: int) -> Any:
    ddl.barrier()
    memory = secret_memory(4 * n)
    if memory is None:
        return None
    before = read_by_kernel()
    x = np.frombuffer(memory, np.float32)
    x[:] = 5 + ddl.rank()
    return float(ddl.broadcast(x, root=1)[-1]), float(ddl.allgather(x).sum()), read_by_kernel(before)


def test_memory_that_the_kernel_does_not_read() -> None:
    n = 1 << 16
    answers = ranks.run(2, from_secret_memory, n, env=FROM_ONE_BYTE)
    if answers[0] is None:
        pytest.skip("this kernel has no memfd_secret, the only such memory that any process can have")
    assert answers == [(6.0, 11.0 * n, 0)] * 2


def unmaps_half(who: int, n: int) -> str:
    memory = mmap.mmap(-1, 4 * n)
    x = np.frombuffer(memory, np.float32)
    for _ in range(2):  # in the first, the ranks may not know yet whether they can read one another's memory
        ddl.broadcast_(x, root=0)
    if ddl.rank() == who:
        half = x.ctypes.data + (2 * n if who == 0 else 0)  # which the other one reads, or to which it writes
        assert LIBC.mprotect(ctypes.c_void_p(half), ctypes.c_size_t(2 * n), 0) == 0
    try:
        ddl.broadcast_(x, root=0)
    except ddl.Error as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.mark.parametrize(
    ("who", "what"),
    [
        (0, "rank 0's array cannot be read any more; was it freed"),
        (1, "this rank's array cannot be written to rank 1's any more; was one of them freed"),
    ],
)
def test_an_array_that_is_gone_is_an_error_on_all_ranks(who: int, what: str) -> None:
    answers = ranks.run(2, unmaps_half, who, 1 << 18, env=FROM_ONE_BYTE)
    text = f"ProtocolError: .*524288 bytes of {what}"
    assert all(re.match(text, answer) for answer in answers), answers


# --- a rank dies ---


def gather_until_it_fails(how: str, folder: str) -> str:
    x, out = own(1 << 19), np.empty(ddl.size() << 19, np.float32)
    ddl.allgather(x, out=out)
    if ddl.rank() == 1:
        strike_after(0.1, how, folder)
    try:
        for _ in range(10_000_000):
            ddl.allgather(x, out=out)
            ddl.broadcast_(x, root=1)
    except ddl.Error as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.mark.faults
@pytest.mark.parametrize("how", ["killed", "exited"])
def test_a_rank_that_dies_is_named(how: str, tmp_path: Path) -> None:
    assert how in STRIKES
    answers = ranks.run(3, gather_until_it_fails, how, str(tmp_path), may_die=[1], env=FROM_ONE_BYTE)
    assert int(answers[1]) == {"killed": -signal.SIGKILL, "exited": 3}[how]
    assert struck_at(tmp_path) > 0
    for rank in (0, 2):
        assert answers[rank].startswith("PeerLost: "), answers
        assert "rank 1" in answers[rank], answers


# --- settings ---


@pytest.mark.parametrize(("text", "value"), [("", -1), ("-1", -1), ("0", 0), ("64K", 65536), ("1", 1)])
def test_the_setting(text: str, value: int) -> None:
    environ: Dict[str, str] = {"DDL_READ_FROM": text}
    assert Settings.from_environ(environ).read_from == value
