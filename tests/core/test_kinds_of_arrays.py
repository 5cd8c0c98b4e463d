"""Complex numbers and lists in every verb; operators by their names; the root by position, as with mpi4py."""

from __future__ import annotations

from typing import Any, Callable, List

import numpy as np
import pytest
import ranks
from core.jobs import connected

import ddl
from ddl.reduce_op import parse_op

pytestmark = pytest.mark.processes


def of_rank(rank: int, rows: int, dtype: str) -> np.ndarray:
    """Whole numbers, so that sums are exact; another one in each place, on each rank, and in both parts."""
    steps = np.arange(rows * 3).reshape(rows, 3)
    return (steps + 100 * rank + 1j * (7 * steps - rank)).astype(dtype)


def all_verbs_with_complex_numbers(dtype: str) -> None:
    rank, size = ddl.rank(), ddl.size()
    peer, source = (rank + 1) % size, (rank - 1) % size
    x = of_rank(rank, 6, dtype)
    everybody = [of_rank(r, 6, dtype) for r in range(size)]
    total = sum(everybody)
    share = np.split(total, np.cumsum([6 // size + (r < 6 % size) for r in range(size)])[:-1])[rank]

    def same(got: Any, wanted: Any) -> None:
        assert got.dtype == np.dtype(dtype) and got.shape == wanted.shape and np.array_equal(got, wanted)

    same(ddl.allreduce(x, op=ddl.Sum), total)
    same(ddl.allreduce(x), (total / size).astype(dtype))
    same(ddl.allreduce(x.T, op=ddl.Sum), total.T)  # not contiguous: a copy is sent
    same(ddl.allreduce(x[0, 0], op=ddl.Sum), total[0, 0])  # no dimensions
    same(ddl.allreduce(x[:0], op=ddl.Sum), total[:0])
    same(ddl.allreduce_async(x, op="sum").wait(), total)
    for in_place in (ddl.allreduce_, lambda y, op: ddl.allreduce_async_(y, op=op).wait()):
        own = x.copy()
        assert in_place(own, op=ddl.Sum) is own
        same(own, total)
    own = x.copy()
    step = ddl.prepare_allreduce(own, op=ddl.Sum)
    for times in (1, size):  # the second time of the total
        assert step() is own
        same(own, total * times)
    same(ddl.broadcast(x, size - 1), everybody[-1])
    same(ddl.broadcast_async(x, size - 1).wait(), everybody[-1])
    for over in (ddl.broadcast_, lambda y, root: ddl.broadcast_async_(y, root).wait()):
        own = x.copy()
        assert over(own, size - 1) is own
        same(own, everybody[-1])
    same(ddl.reducescatter(x, op=ddl.Sum), share)
    same(ddl.allgather(x[: 1 + rank]), np.concatenate([array[: 1 + r] for r, array in enumerate(everybody)]))
    out = np.empty((6 * size, 3), dtype)
    assert ddl.allgather(x, out=out) is out
    same(out, np.concatenate(everybody))
    if 6 % size == 0:
        even = np.empty((6 // size, 3), dtype)
        same(ddl.reducescatter(x, op=ddl.Sum, out=even), share)
        same(
            ddl.alltoall(x, out=np.empty_like(x)), np.concatenate([np.split(array, size)[rank] for array in everybody])
        )
    splits = [6, *[0] * (size - 1)]
    rows, received = ddl.alltoall(x, splits)
    assert received.tolist() == [6 if rank == 0 else 0] * size
    same(rows, np.concatenate(everybody) if rank == 0 else x[:0])
    reduced = ddl.reduce(x, 1, op="sum")
    gathered = ddl.gather(x, 1)
    if rank == 1:
        same(reduced, total)
        same(gathered, np.concatenate(everybody))
    else:
        assert reduced is None and gathered is None
    pieces = np.array_split(everybody[1], size)
    same(ddl.scatter(x if rank == 1 else None, 1), pieces[rank])
    work, own = ddl.send_async(x, peer), np.empty_like(x)
    same(ddl.recv(own, source), everybody[source])
    work.wait()


def lists() -> None:
    rank, size = ddl.rank(), ddl.size()
    assert ddl.allreduce([1.5, rank]).tolist() == [1.5, (size - 1) / 2]
    assert ddl.allreduce([[rank], [2]], op="sum").tolist() == [[size * (size - 1) // 2], [2 * size]]
    assert ddl.allreduce(1 + 2j, op="sum") == size * (1 + 2j)
    assert ddl.broadcast((rank, 5), 1).tolist() == [1, 5]
    assert ddl.allgather([rank] * (rank + 1)).tolist() == [r for r in range(size) for _ in range(r + 1)]
    work, own = ddl.send_async([rank, 2.5], (rank + 1) % size), np.empty(2)
    assert ddl.recv(own, (rank - 1) % size).tolist() == [(rank - 1) % size, 2.5]
    work.wait()


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except ddl.InvalidArgument as error:
        assert error.__cause__ is None and (error.__suppress_context__ or error.__context__ is None)
        return str(error)
    raise AssertionError("it was accepted")


def what_is_refused() -> List[str]:
    x, strided = np.ones(4, np.complex64), np.ones((4, 4), np.complex64)[:, ::2]
    texts = [
        refused(lambda: ddl.allreduce(x, op=ddl.Max)),
        refused(lambda: ddl.allreduce_(x, op="product")),
        refused(lambda: ddl.reduce(x, op="min")),
        refused(lambda: ddl.reducescatter(x, op="min", out=x)),
        refused(lambda: ddl.allreduce_(strided)),
        refused(lambda: ddl.broadcast_(strided)),
        refused(lambda: ddl.recv(strided, (ddl.rank() + 1) % ddl.size())),
        refused(lambda: ddl.prepare_allreduce(x, op="max")),
        refused(lambda: ddl.alltoall(np.ones(6, np.complex64), out=np.ones(12, np.float32))),
        refused(lambda: ddl.allreduce_([1, 2])),
        refused(lambda: ddl.allreduce([[1, 2], [3]])),
        refused(lambda: ddl.allreduce([1], op="sun")),
        refused(lambda: ddl.allreduce([1], op=0)),
        refused(lambda: ddl.reduce([1], ddl.Sum)),
    ]
    ddl.barrier()
    assert float(ddl.allreduce(1.0, op="SUM")) == ddl.size()
    return texts


def everything() -> List[str]:
    for dtype in ("complex64", "complex128"):
        all_verbs_with_complex_numbers(dtype)
    lists()
    return what_is_refused()


@pytest.mark.parametrize(("size", "transport"), [(2, "shared"), (3, "tcp")])
def test_complex_numbers_lists_names_and_roots(size: int, transport: str) -> None:
    for texts in ranks.run(size, everything, **connected(transport)):
        for text, words in zip(texts, EXPECTED):
            assert words in text, text
        assert len(texts) == len(EXPECTED)


EXPECTED = [
    *["averaged and summed; op=ddl.Max", "averaged and summed; op=ddl.Product"],
    *["averaged and summed; op=ddl.Min", "averaged and summed; op=ddl.Min"],
    *["not contiguous", "not contiguous", "not contiguous"],
    "averaged and summed; op=ddl.Max",
    "input is complex64 but the target is float32",
    "a list cannot be used in place",
    "a list that numpy cannot make an array of",
    "op='sun' is no operator (did you mean 'sum'?)",
    "op=0 is no operator; pass ddl.Average",
    "root=ddl.Sum is an operator; pass op=ddl.Sum by its name",
]


def test_names_of_operators() -> None:
    for op in ddl.ReduceOp:
        assert parse_op(op) is op and parse_op(op.name.lower()) is op and parse_op(op.name.upper()) is op
    with pytest.raises(ddl.InvalidArgument, match=r"^reduce: op='avarage' is no operator \(did you mean 'average'\?\)"):
        parse_op("avarage", "reduce")
    for wrong in (None, 0, 4, True, 1.0, b"sum", "", "mean value"):
        with pytest.raises(ddl.InvalidArgument, match="is no operator; pass ddl.Average, Sum, Min, Max, Product"):
            parse_op(wrong)
