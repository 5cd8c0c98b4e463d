"""``out=`` of reducescatter, allgather and alltoall: the values of the plain verbs, into memory that is already there.

All of them are exact. What cannot fit is refused with its numbers before anything is sent; ``out`` on some of the ranks
only is another call, and every rank learns of it.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import TRANSPORTS, connected
from core.values import OPS, Bfloat16, allowed, check_equal, contribution, expected, for_ddl, numbers, placed, storage

import ddl

pytestmark = pytest.mark.processes

#: Elements that each rank contributes or gets: none, one, around the inline limit, around 4 KiB, several pieces.
COUNTS = [0, 1, 2, 7, 12, 13, 1009, 1024, 1025, 70_001, 300_007]
#: (type, elements of a block) beyond int32
TYPES = [("float32", 5), ("float64", 3000), ("int8", 4099), ("bfloat16", 33), ("uint16", 20_011), ("bool", 1)]
#: (input, output) in shared memory
PLACES = list(itertools.product((False, True), repeat=2))


def filled(count: int, dtype: str, shared: bool) -> np.ndarray:
    """An array for a result, full of what no result is."""
    return placed(np.full(count, 113, storage(dtype)), shared)


def reduced(dtype: str, op: ddl.ReduceOp, block: int, places: Tuple[bool, bool], salt: int) -> None:
    rank, size = ddl.rank(), ddl.size()
    own = contribution(dtype, op, rank, size, block * size, salt)
    x, out = placed(own, places[0]), filled(block, dtype, places[1])
    target = for_ddl(dtype, out)
    assert ddl.reducescatter(for_ddl(dtype, x), op=op, out=target) is target
    want = expected(dtype, op, size, block * size, salt)[rank * block : (rank + 1) * block]
    check_equal(out, want, f"reducescatter {op.name} of {size} x {block} {dtype}, places {places}")
    check_equal(x, own, "reducescatter: the input was changed")


def gathered(dtype: str, block: int, places: Tuple[bool, bool], salt: int) -> None:
    rank, size = ddl.rank(), ddl.size()
    parts = [numbers(r, block, salt).astype(storage(dtype)) for r in range(size)]
    x, out = placed(parts[rank], places[0]), filled(block * size, dtype, places[1])
    target = for_ddl(dtype, out)
    assert ddl.allgather(for_ddl(dtype, x), out=target) is target
    check_equal(out, np.concatenate(parts), f"allgather of {size} x {block} {dtype}, places {places}")
    check_equal(x, parts[rank], "allgather: the input was changed")


def dealt(dtype: str, block: int, places: Tuple[bool, bool], salt: int) -> None:
    rank, size = ddl.rank(), ddl.size()
    everybody = [numbers(r, block * size, salt).astype(storage(dtype)) for r in range(size)]
    x, out = placed(everybody[rank], places[0]), filled(block * size, dtype, places[1])
    target = for_ddl(dtype, out)
    assert ddl.alltoall(for_ddl(dtype, x), out=target) is target
    want = np.concatenate([part[rank * block : (rank + 1) * block] for part in everybody])
    check_equal(out, want, f"alltoall of {size} x {size} x {block} {dtype}, places {places}")
    check_equal(x, everybody[rank], "alltoall: the input was changed")


def every_verb() -> int:
    rank, done = ddl.rank(), 0
    operators = itertools.cycle(OPS)
    for block, dtype in [*((count, "int32") for count in COUNTS), *((count, dtype) for dtype, count in TYPES)]:
        for number in range(4 if block < 10_000 else 2):
            # Where the buffers lie rotates, and differs by rank every second time.
            places = PLACES[(number + done + rank * (number % 2)) % 4]
            op = next(operators)
            reduced(dtype, op if allowed(dtype, op) else ddl.Min, block, places, done)
            gathered(dtype, block, places, done)
            dealt(dtype, block, places, done)
            done += 1
    return done


@pytest.mark.few(3)
@pytest.mark.parametrize(("size", "transport"), [(1, "shared"), *itertools.product([2, 3, 4], TRANSPORTS)])
def test_every_verb(size: int, transport: str) -> None:
    small = sum(count < 10_000 for count in [*COUNTS, *(count for _, count in TYPES)])
    times = 4 * small + 2 * (len(COUNTS) + len(TYPES) - small)
    assert ranks.run(size, every_verb, **connected(transport)) == [times] * size


@pytest.mark.few(1)
@pytest.mark.parametrize("transport", ["interleaved", "uneven"])
def test_odd_layouts(transport: str) -> None:
    assert len(set(ranks.run(5, every_verb, **connected(transport)))) == 1


def the_same_call_on_changing_memory(rounds: int) -> int:
    """What the core keeps of the last call is not its memory, nor its size or type."""
    rank, size = ddl.rank(), ddl.size()
    for number in range(rounds):
        block = (3, 5, 3, 3, 2000)[number % 5]
        parts = [numbers(r, block, number % 100) for r in range(size)]
        if number % 2:
            parts = [part.astype(np.float64) for part in parts]
        out = np.empty(block * size, parts[0].dtype)
        check_equal(ddl.allgather(parts[rank], out=out), np.concatenate(parts), f"allgather {number}")
        back = np.empty(block, parts[0].dtype)
        check_equal(ddl.reducescatter(out, op=ddl.Max, out=back), parts[rank], f"reducescatter {number}")
        again = np.empty_like(out)
        check_equal(ddl.alltoall(out, out=again), np.tile(parts[rank], size), f"alltoall {number}")
        check_equal(ddl.allgather(parts[rank]), out, f"allgather without out {number}")
    return rounds


@pytest.mark.parametrize(("transport", "size"), [("shared", 2), ("shared", 3), ("tcp", 2), ("hybrid", 4)])
def test_changing_memory(transport: str, size: int) -> None:
    rounds = 500 if transport == "shared" else 200
    assert ranks.run(size, the_same_call_on_changing_memory, rounds, **connected(transport)) == [rounds] * size


def shapes() -> List[Tuple[int, ...]]:
    """``out`` may have any shape of the right number of elements, and keeps it; the result is that object."""
    rank, size = ddl.rank(), ddl.size()
    x = numbers(rank, 6 * size).reshape(size, 2, 3)
    out = np.empty((3, 2), np.int32)
    ddl.reducescatter(x, op=ddl.Min, out=out)
    check_equal(out, numbers(0, 6 * size)[6 * rank : 6 * rank + 6].reshape(3, 2), "reducescatter")
    flat = np.empty(36 * size // 6, np.int32)
    ddl.allgather(numbers(rank, 6).reshape(2, 3), out=flat)
    check_equal(flat, np.concatenate([numbers(r, 6) for r in range(size)]), "allgather")
    return [out.shape, flat.shape]


def test_shapes() -> None:
    assert ranks.run(3, shapes) == [[(3, 2), (18,)]] * 3


def still_whole() -> None:
    rank, size = ddl.rank(), ddl.size()
    assert float(ddl.allreduce(np.full(3, float(rank)), op=ddl.Sum)[2]) == size * (size - 1) / 2
    out = np.empty(2 * size, np.int32)
    assert ddl.allgather(np.full(2, rank, np.int32), out=out).tolist() == [r for r in range(size) for _ in (0, 1)]


def wrong_calls() -> Dict[str, Tuple[Callable[[], Any], List[str]]]:
    """name: (call of 3 ranks, words that the message must have)"""
    x, read_only = np.ones(12, np.float32), np.ones(12, np.float32)
    read_only.flags.writeable = False
    return {
        "reducescatter: too long": (lambda: ddl.reducescatter(x, out=np.ones(5, np.float32)), ["5", "4", "12", "3"]),
        "reducescatter: too short": (lambda: ddl.reducescatter(x, out=np.ones(3, np.float32)), ["3 e", "4 are", "12"]),
        "reducescatter: indivisible": (lambda: ddl.reducescatter(x[:11], out=np.ones(4, np.float32)), ["11"]),
        "allgather: too long": (lambda: ddl.allgather(x, out=np.ones(37, np.float32)), ["37", "36", "12"]),
        "allgather: too short": (lambda: ddl.allgather(x, out=np.ones(12, np.float32)), ["12", "36"]),
        "allgather: empty": (lambda: ddl.allgather(x, out=np.ones(0, np.float32)), ["0 e", "36"]),
        "alltoall: too long": (lambda: ddl.alltoall(x, out=np.ones(13, np.float32)), ["13", "12"]),
        "alltoall: indivisible": (lambda: ddl.alltoall(x[:10], out=np.ones(10, np.float32)), ["10"]),
        "alltoall: splits": (lambda: ddl.alltoall(x, [4, 4, 4], out=np.empty_like(x)), ["splits", "out"]),
        "another type": (lambda: ddl.alltoall(x, out=np.ones(12)), ["float32", "float64"]),
        "strided": (lambda: ddl.alltoall(x, out=np.ones(24, np.float32)[::2]), ["contiguous"]),
        "strided input": (lambda: ddl.alltoall(np.ones(24, np.float32)[::2], out=x), ["contiguous"]),
        "read-only": (lambda: ddl.alltoall(x, out=read_only), ["read-only"]),
        "a list": (lambda: ddl.allgather(x, out=[0.0] * 36), ["list"]),
        "no input": (lambda: ddl.allgather(None, out=x), ["NoneType"]),
        "bool": (lambda: ddl.reducescatter(np.ones(3, bool), out=np.ones(1, bool)), ["bool"]),
        "operator": (lambda: ddl.reducescatter(x, op=9, out=np.ones(4, np.float32)), ["op"]),
        "half": (lambda: ddl.alltoall(Bfloat16(np.ones(3, np.uint16)), out=np.ones(3, np.float16)), ["bfloat16"]),
    }


def refused(only_rank: int) -> List[str]:
    """What is wrong with the refusals; on all ranks, or (the others then do nothing) on one."""
    wrong = []
    for name, (call, words) in wrong_calls().items():
        if only_rank in (-1, ddl.rank()):
            try:
                call()
                wrong.append(f"{name}: accepted")
            except ddl.InvalidArgument as error:
                missing = [word for word in words if word not in str(error)]
                wrong += [f"{name}: no {missing} in {error}"] if missing else []
        still_whole()
    return wrong


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_what_does_not_fit_is_refused_with_its_numbers(transport: str) -> None:
    assert ranks.run(3, refused, -1, **connected(transport)) == [[]] * 3
    assert ranks.run(3, refused, 1, **connected(transport)) == [[]] * 3


def on_one_rank_only(verb: str) -> Tuple[str, str]:
    size = ddl.size()
    x = np.ones(12 * size, np.float32)
    out = np.empty(
        x.size // size if verb == "reducescatter" else x.size * (size if verb == "allgather" else 1), x.dtype
    )
    call = getattr(ddl, verb)
    try:
        call(x, out=out)
        for _ in range(5):
            ddl.allreduce(np.ones(4))
        call(x) if ddl.rank() == 1 else call(x, out=out)
        for _ in range(5):
            ddl.allreduce(np.ones(4))
    except ddl.CommunicatorError as error:
        return type(error).__name__, str(error)
    return "returned", ""


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("verb", ["reducescatter", "allgather", "alltoall"])
def test_on_one_rank_only(verb: str, transport: str) -> None:
    for kind, text in ranks.run(3, on_one_rank_only, verb, **connected(transport)):
        assert kind == "CollectiveMismatch" and verb in text and "#7" in text, (kind, text)


def other_sizes(verb: str) -> Tuple[str, str]:
    """Every rank's own arrays fit together, but not with the other ranks'."""
    size, block = ddl.size(), 5 if ddl.rank() == 2 else 4
    lengths = {"reducescatter": (block * size, block), "allgather": (block, block * size)}
    inputs, outputs = lengths.get(verb, (block * size, block * size))
    try:
        for _ in range(3):
            getattr(ddl, verb)(np.ones(inputs), out=np.empty(outputs))
    except ddl.CommunicatorError as error:
        return type(error).__name__, str(error)
    return "returned", ""


@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.parametrize("verb", ["reducescatter", "allgather", "alltoall"])
def test_other_sizes_on_one_rank(verb: str, transport: str) -> None:
    for kind, text in ranks.run(3, other_sizes, verb, **connected(transport)):
        assert kind == "CollectiveMismatch" and "4 x" in text and "5 x" in text, (kind, text)


def overlapping(case: str) -> List[str]:
    """Calls whose result lies in their input, or the other way round: right, or refused before anything is sent."""
    rank, size = ddl.rank(), ddl.size()
    said = []
    for block, shared in itertools.product((4, 3000, 200_000), (False, True)):
        parts = [numbers(r, block * size) for r in range(size)]
        own = slice(rank * block, (rank + 1) * block)
        x = placed(parts[rank], shared)
        calls: Dict[str, Tuple[Callable[[], Any], np.ndarray]] = {
            "alltoall onto itself": (lambda x=x: ddl.alltoall(x, out=x), np.concatenate([p[own] for p in parts])),
            "allgather from its own block": (
                lambda x=x, own=own: ddl.allgather(x[own], out=x),
                np.concatenate([part[r * block : (r + 1) * block] for r, part in enumerate(parts)]),
            ),
            "reducescatter onto its own block": (
                lambda x=x, own=own: ddl.reducescatter(x, op=ddl.Max, out=x[own]),
                parts[-1][own],
            ),
        }
        call, want = calls[case]
        try:
            said.append("right" if np.array_equal(call(), want) else f"wrong with blocks of {block}, shared {shared}")
        except ddl.InvalidArgument:
            said.append("refused")
        still_whole()
    return said


@pytest.mark.parametrize(("transport", "size"), [("shared", 2), ("shared", 3), ("tcp", 3), ("hybrid", 4)])
@pytest.mark.parametrize("case", ["allgather from its own block", "reducescatter onto its own block"])
def test_in_place_as_mpi_has_it(case: str, transport: str, size: int) -> None:
    assert ranks.run(size, overlapping, case, **connected(transport)) == [["right"] * 6] * size


@pytest.mark.parametrize(("transport", "size"), [("shared", 2), ("shared", 3), ("tcp", 3), ("hybrid", 4)])
@pytest.mark.parametrize("case", ["alltoall onto itself"])
def test_overlapping_memory_is_refused_or_right(case: str, transport: str, size: int) -> None:
    answers = ranks.run(size, overlapping, case, **connected(transport))
    assert {said for answer in answers for said in answer} <= {"right", "refused"}, answers
