"""Every collective once per size, checked exactly; run by ranks under many algorithms, layouts and transports."""

from __future__ import annotations

from typing import List, Optional, Sequence

import numpy as np
from core.values import check_equal, contribution, expected, numbers, placed

import ddl


def reductions(comm: ddl.Communicator, count: int, root: int, shared: bool) -> None:
    rank, size = comm.rank, comm.size
    for dtype, op in (("float32", ddl.Sum), ("int16", ddl.Average)):
        own = placed(contribution(dtype, op, rank, size, count, salt=root), shared)
        want = expected(dtype, op, size, count, salt=root)
        check_equal(comm.allreduce(own, op=op), want, f"allreduce {count} {dtype}")
        reduced = comm.reduce(own, root=root, op=op)
        assert (reduced is None) == (rank != root)
        if reduced is not None:
            check_equal(reduced, want, f"reduce {count} {dtype} to {root}")
        rows = count // 3  # rows of three; what is left over is left out
        share = split(rows, size)
        start = sum(share[:rank])
        got = comm.reducescatter(own[: rows * 3].reshape(rows, 3), op=op)
        want_rows = want[: rows * 3].reshape(rows, 3)[start : start + share[rank]]
        check_equal(got, want_rows, f"reducescatter {rows} rows of {dtype}")
    x = placed(contribution("float32", ddl.Sum, rank, size, count), shared)
    assert comm.allreduce_(x, op=ddl.Sum) is x
    check_equal(x, expected("float32", ddl.Sum, size, count), f"allreduce_ {count}")


def split(rows: int, size: int) -> List[int]:
    """The first ranks get one more where it does not divide."""
    return [rows // size + (rank < rows % size) for rank in range(size)]


def broadcasts(comm: ddl.Communicator, count: int, root: int, shared: bool) -> None:
    own = placed(numbers(comm.rank, count), shared)
    want = numbers(root, count)
    check_equal(comm.broadcast(own, root=root), want, f"broadcast {count} from {root}")
    check_equal(own, numbers(comm.rank, count), "broadcast: the input was changed")
    assert comm.broadcast_(own, root=root) is own
    check_equal(own, want, f"broadcast_ {count} from {root}")


def rows_of(rank: int, count: int, size: int) -> int:
    """Different on every rank, 0 on one of them (on all for count 0)."""
    return 0 if rank == count % size else count // size + rank * min(1, count)


def gathers(comm: ddl.Communicator, count: int, root: int, shared: bool) -> None:
    rank, size = comm.rank, comm.size
    arrays = [numbers(r, 2 * rows_of(r, count, size)).reshape(-1, 2) for r in range(size)]
    own = placed(arrays[rank], shared)
    want = np.concatenate(arrays)
    check_equal(comm.allgather(own), want, f"allgather of {[len(a) for a in arrays]} rows")
    gathered = comm.gather(own, root=root)
    assert (gathered is None) == (rank != root)
    if gathered is not None:
        check_equal(gathered, want, f"gather of {[len(a) for a in arrays]} rows to {root}")
    whole: Optional[np.ndarray] = placed(numbers(root, 2 * count).reshape(count, 2), shared)
    share = split(count, size)
    start = sum(share[:rank])
    want = numbers(root, 2 * count).reshape(count, 2)[start : start + share[rank]]
    check_equal(comm.scatter(whole if rank == root else None, root=root), want, f"scatter {count} from {root}")


def exchanges(comm: ddl.Communicator, count: int, shared: bool) -> None:
    rank, size = comm.rank, comm.size
    # splits[a][b]: how many rows rank a sends to rank b; some are 0
    splits = [
        [0 if (a + b) % 3 == 2 else count // size + (a * b) % 4 * min(1, count) for b in range(size)]
        for a in range(size)
    ]
    sent = [numbers(a, sum(splits[a])) for a in range(size)]
    parts = []
    for a in range(size):
        start = sum(splits[a][:rank])
        parts.append(sent[a][start : start + splits[a][rank]])
    got, received = comm.alltoall(placed(sent[rank], shared), splits[rank])
    check_equal(got, np.concatenate(parts), f"alltoall by splits {splits}")
    assert list(received) == [splits[a][rank] for a in range(size)]
    even = count // size
    own = placed(numbers(rank, even * size * 2).reshape(even * size, 2), shared)
    want = np.concatenate(
        [numbers(a, even * size * 2).reshape(even * size, 2)[rank * even : (rank + 1) * even] for a in range(size)]
    )
    check_equal(comm.alltoall(own), want, f"alltoall of {even} rows to each")


def check_everything(comm: ddl.Communicator, counts: Sequence[int]) -> int:
    """Run every collective for every count; return how many rounds there were."""
    for number, count in enumerate(counts):
        root = number % comm.size
        shared = (number + comm.rank * (number // 2 % 2)) % 2 == 0  # all, none, or some of the ranks
        reductions(comm, count, root, shared)
        broadcasts(comm, count, root, shared)
        gathers(comm, count, root, not shared)
        exchanges(comm, count, shared)
        comm.barrier()
    return len(counts)


def on_world(counts: Sequence[int]) -> int:
    return check_everything(ddl.world(), counts)


def every_root(count: int) -> int:
    comm = ddl.world()
    for root in range(comm.size):
        for shared in (False, True):
            broadcasts(comm, count, root, shared)
            reductions(comm, count, root, shared)
            gathers(comm, count, root, shared)
    return comm.size
