"""``deterministic=True``: the bits of every sum are those of one tree over rank numbers, whatever connects the ranks.

What must come out is worked out here with numpy, along that tree; every layout is compared with it, to the bit.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected
from core.values import Bfloat16, placed

import ddl
from ddl.plan.canonical_tree import CANONICAL
from ddl.plan.ir import Collective
from ddl.plan.layout import REDUCING
from ddl.topology import Topology
from ddl.tuning.select import Line, select

DETERMINISTIC = {"DDL_DETERMINISTIC": "1"}
#: Small and large ones, several pieces, odd ends; float32 elements.
COUNTS = [1, 3, 4097, 70_001, 1_300_003]
DTYPES = ["float16", "float32", "float64", "int32"]


def inputs(dtype: str, size: int, count: int) -> np.ndarray:
    """Return a row for each rank: numbers of many magnitudes, whose sums depend on the order."""
    draw = np.random.default_rng([size, count])
    if dtype == "int32":
        return draw.integers(-(2**31), 2**31, (size, count), dtype=np.int32)
    return (draw.standard_normal((size, count)) * 2.0 ** draw.integers(-6, 7, (size, count))).astype(dtype)


def added(rows: np.ndarray, average: bool) -> np.ndarray:
    """Add along the tree; each sum is rounded to the type, an average after its division. Float16 adds as float32.

    Averages of integers are exact, and truncated.
    """
    size = len(rows)
    if size == 1:
        return rows[0]
    if average and rows.dtype.kind == "i":
        return np.trunc(rows.sum(0, dtype=np.int64) / size).astype(rows.dtype)
    cut = 1 << ((size - 1).bit_length() - 1)
    left, right = added(rows[:cut], False), added(rows[cut:], False)
    wide = np.dtype(np.float32 if rows.dtype == np.float16 else rows.dtype)
    total = left.astype(wide) + right.astype(wide)
    return (total / wide.type(size) if average else total).astype(rows.dtype)


def tree_on(comm: ddl.Communicator) -> int:
    """Compare all reducing collectives of ``comm`` with the tree; returns how many comparisons were made."""
    rank, size, done = comm.rank, comm.size, 0
    for dtype, count in itertools.product(DTYPES, COUNTS):
        if count > 70_001 and dtype != "float32":
            continue
        rows = inputs(dtype, size, count)
        for op in (ddl.Sum, ddl.Average) if count <= 70_001 else (ddl.Average,):
            want = added(rows, op is ddl.Average)
            got = comm.allreduce(placed(rows[rank].copy(), shared=count % 2 == 1), op=op)
            assert got.tobytes() == want.tobytes(), (dtype, count, op)
            x = rows[rank].copy()
            for bucket in np.array_split(x, 3):
                comm.allreduce_(bucket, op=op)
            assert x.tobytes() == want.tobytes(), ("in three buckets", dtype, count, op)
            part = comm.reducescatter(rows[rank], op=op)
            assert part.tobytes() == np.array_split(want, size)[rank].tobytes(), ("reducescatter", dtype, count, op)
            reduced = comm.reduce(rows[rank], root=size - 1, op=op)
            assert reduced is None or reduced.tobytes() == want.tobytes(), ("reduce", dtype, count, op)
            done += 1
    return done


def on_world() -> Tuple[bool, int]:
    return ddl.world().deterministic, tree_on(ddl.world())


LAYOUTS = [
    *[(size, transport, "") for size in (2, 3, 4) for transport in ("shared", "tcp")],
    (3, "uneven", ""),
    (4, "uneven", ""),
    (4, "hybrid", ""),
    (4, "interleaved", ""),
    (4, "hybrid", "4x1"),
    (4, "tcp", "2x2"),
]


@pytest.mark.few(1)
@pytest.mark.processes
@pytest.mark.parametrize(("size", "transport", "dimensions"), LAYOUTS)
def test_any_layout_has_the_bits_of_the_tree(size: int, transport: str, dimensions: str) -> None:
    job = connected(transport, DDL_DIMENSIONS=dimensions, **DETERMINISTIC)
    assert ranks.run(size, on_world, **job) == [(True, 33)] * size


def bits_of_bfloat16(deterministic: bool) -> List[bytes]:
    """The bits of sums of bfloat16, which numpy has not: compared among layouts."""
    comm = ddl.world().split(0, deterministic=deterministic)
    assert comm is not None and comm.deterministic == deterministic
    results = []
    for count in COUNTS[:-1]:
        wide = inputs("float32", comm.size, count)[comm.rank]
        bits = (wide.view(np.uint32) >> 16).astype(np.uint16)
        comm.allreduce_(Bfloat16(bits), op=ddl.Average)
        results.append(bits.tobytes())
    return results


@pytest.mark.processes
def test_bfloat16_has_the_same_bits_in_all_layouts_and_only_if_deterministic() -> None:
    def bits_in_layouts(deterministic: bool) -> List[List[bytes]]:
        answers = [
            ranks.run(4, bits_of_bfloat16, deterministic, **connected(transport))
            for transport in ("shared", "tcp", "interleaved")
        ]
        assert all(answer == answer_of_all[0] for answer_of_all in answers for answer in answer_of_all)
        return [answer_of_all[0] for answer_of_all in answers]

    first, *others = bits_in_layouts(deterministic=True)
    assert others == [first, first]
    first, *others = bits_in_layouts(deterministic=False)
    assert others != [first, first]


def default_bits() -> List[bytes]:
    results = []
    for dtype in ("float16", "float32", "float64"):
        rows = inputs(dtype, ddl.size(), 70_001)
        results.append(ddl.allreduce(rows[ddl.rank()], op=ddl.Sum).tobytes())
    return results


@pytest.mark.processes
def test_without_it_layouts_have_other_bits() -> None:
    """The inputs of these tests show another order, of every type."""
    shared, tcp = (ranks.run(4, default_bits, **connected(transport))[0] for transport in ("shared", "tcp"))
    for dtype, shared_bits, other in zip(("float16", "float32", "float64"), shared, tcp):
        assert shared_bits != other, dtype
        want = added(inputs(dtype, 4, 70_001), False).tobytes()
        assert (shared_bits, other) != (want, want)


def parts_of_a_job() -> Tuple[bool, bool, bool, str, int]:
    """A deterministic part of a job that writes float32 shorter: it alone is, and so are its own parts."""
    world = ddl.world()
    part = world.split(0, key=-ddl.rank(), deterministic=True)  # the other way round: its rank numbers count
    assert part is not None and part.rank == ddl.size() - 1 - ddl.rank()
    inner = part.split(0)
    assert inner is not None
    subset = part.subset(range(part.size))
    return world.deterministic, part.deterministic, subset.deterministic, part.wire, tree_on(inner)


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3])
def test_a_part_is_deterministic_by_itself(size: int) -> None:
    job = connected("tcp", DDL_WIRE="bf16")
    assert ranks.run(size, parts_of_a_job, **job) == [(False, True, True, "float32", 33)] * size


def split_that_differs() -> str:
    with pytest.raises(ddl.InvalidArgument) as caught:
        ddl.world().split(0, deterministic=ddl.rank() == 1)
    assert ddl.allreduce(np.float32(1), op=ddl.Sum) == ddl.size()  # the world is unharmed
    return str(caught.value)


@pytest.mark.processes
def test_ranks_that_differ_are_told() -> None:
    for text in ranks.run(3, split_that_differs):
        assert "ranks [1] asked for deterministic=True" in text


def refused(argument: bool) -> str:
    try:
        ddl.init(deterministic=True if argument else None)
    except ddl.ConfigError as error:
        return str(error)
    return f"deterministic: {ddl.world().deterministic}"


def only_rank_1(rank: int) -> Dict[str, str]:
    return DETERMINISTIC if rank == 1 else {}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("argument", "env", "env_of", "words"),
    [
        (False, {}, only_rank_1, ["rank 1 (host", "asked for deterministic sums, rank 0 (host", "every rank"]),
        (False, {"DDL_ALGORITHM": "ring", **DETERMINISTIC}, None, ["DDL_ALGORITHM=ring", "DDL_DETERMINISTIC"]),
        (True, {"DDL_WIRE": "fp16"}, None, ["DDL_WIRE=fp16", "deterministic=True"]),
        (True, {"DDL_DETERMINISTIC": "0"}, None, ["deterministic: True"]),
    ],
)
def test_init(argument: bool, env: Dict[str, str], env_of: Callable[[int], Dict[str, str]], words: List[str]) -> None:
    for text in ranks.run(2, refused, argument, initialise=False, env=env, env_of=env_of):
        assert all(word in text for word in words), text


TUNED = {Collective.ALLREDUCE: (Line(2**63, "multiring", 1 << 20, False, 2, True),)}
TOPOLOGIES = [Topology.flat(2), Topology.flat(4), Topology.flat(4, shared=True), Topology.parse("2x2", shared=1)]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: f"{topology}-{topology.local_size}")
def test_select(topology: Topology) -> None:
    for collective in REDUCING:
        lines: Any = select(collective, topology, "ring", TUNED, deterministic=True)
        assert not any(line.coded for line in lines)
        assert topology.size == 2 or {line.algorithm for line in lines} <= CANONICAL
        assert [line.max_bytes for line in lines] == sorted(line.max_bytes for line in lines)
        assert lines[-1].max_bytes == 2**63
    for collective in (Collective.ALLGATHER, Collective.BROADCAST):  # these only move bits
        assert select(collective, topology, "ring", None, True) == select(collective, topology, "ring")
