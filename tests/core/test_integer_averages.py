"""Averages of integers are those of the numbers, also where their sum is more than the type holds."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest
import ranks
from core.jobs import connected

import ddl

pytestmark = pytest.mark.processes

NARROW = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]
SIZE = 3


def numbers(rank: int, dtype: str) -> np.ndarray:
    """Return numbers near both ends of the type, a row for each rank."""
    most, least = np.iinfo(dtype).max, np.iinfo(dtype).min
    return np.array([[most - rank, least + rank, rank, most // 2 + rank]] * SIZE, dtype)


def wanted(dtype: str) -> np.ndarray:
    total = sum(numbers(rank, dtype).astype(object) for rank in range(SIZE))
    truncated = [[int(abs(n) // SIZE) * (1 if n >= 0 else -1) for n in row] for row in total]
    return np.array(truncated, dtype)


def all_verbs(dtype: str) -> Dict[str, List[Any]]:
    world, own = ddl.world(), numbers(ddl.rank(), dtype)
    prepared = own.copy()
    step = world.prepare_allreduce(prepared)
    assert step.buffer is prepared
    step()
    prepared[...] = own  # the second time as the first
    out = np.empty((1, own.shape[1]), dtype)
    results = {
        "allreduce": world.allreduce(own),
        "allreduce_": world.allreduce_(own.copy()),
        "prepared": step(),
        "allreduce_async": world.allreduce_async(own).wait(),
        "allreduce_async_": world.allreduce_async_(own.copy()).wait(),
        "reduce": world.reduce(own, 1),
        "reduce_async": world.reduce_async(own, 1).wait(),
        "reducescatter": world.reducescatter(own),
        "reducescatter_async": world.reducescatter_async(own).wait(),
        "reducescatter out": world.reducescatter(own, out=out),
    }
    assert results["reducescatter out"] is out
    assert all(result is None or result.dtype == dtype for result in results.values())
    return {verb: None if result is None else result.tolist() for verb, result in results.items()}


def all_types() -> Dict[str, Any]:
    assert int(ddl.allreduce(np.int32(2**31 - 1))) == 2**31 - 1
    work = ddl.world().allreduce_async(np.full(3, 200, np.uint8))
    assert work.wait(100) is work.wait() and not work.can_wait_on() and not work.wait_on(0)
    return {dtype: all_verbs(dtype) for dtype in NARROW}


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_no_average_wraps(transport: str) -> None:
    answers = ranks.run(SIZE, all_types, **connected(transport))
    for rank, answer in enumerate(answers):
        for dtype in NARROW:
            mean = wanted(dtype)
            for verb, result in answer[dtype].items():
                if verb.startswith("reducescatter"):
                    assert result == mean[:1].tolist(), (dtype, verb)
                elif verb.startswith("reduce"):
                    assert result == (mean.tolist() if rank == 1 else None), (dtype, verb)
                else:
                    assert result == mean.tolist(), (dtype, verb)


def of_64_bits() -> List[Any]:
    """Their sum must fit: there is no wider type. Where it does not, it wraps, as numpy's."""
    x = np.array([2**62 - ddl.rank(), -(2**62) + ddl.rank(), 7], np.int64)
    return [ddl.allreduce(x).tolist(), ddl.allreduce(np.full(1, 2**63 - 1, np.int64)).tolist()]


def test_averages_of_64_bits_must_fit() -> None:
    assert ranks.run(2, of_64_bits) == [[[2**62 - 1, -(2**62) + 1, 7], [-1]]] * 2


def sums() -> List[int]:
    return [int(ddl.allreduce(np.uint8(200), op=op)) for op in (ddl.Sum, ddl.Min, ddl.Max)]


def test_sums_wrap_as_those_of_numpy() -> None:
    assert ranks.run(2, sums) == [[144, 200, 200]] * 2
