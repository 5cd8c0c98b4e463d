"""``prepare_allreduce``: the same values and refusals as ``allreduce_``, call after call.

Every call gets new contributions, so that a result left over from the call before shows, and one combined twice.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import TRANSPORTS, connected
from core.values import check_equal, contribution, expected, for_ddl, placed

import ddl

pytestmark = pytest.mark.processes

KIB, MIB = 1 << 10, 1 << 20
SALTS = 3
#: (type, operator, bytes, calls): one element, the inline limit of a post, the limit to large plans, several pieces.
CASES: List[Tuple[str, ddl.ReduceOp, int, int]] = [
    ("float32", ddl.Sum, 8, 1000),
    ("float64", ddl.Average, 8, 1000),
    ("int64", ddl.Product, 48, 300),
    ("bfloat16", ddl.Sum, 48, 300),
    ("uint8", ddl.Max, 49, 300),
    ("float16", ddl.Average, 4 * KIB, 200),
    ("int16", ddl.Sum, 4 * KIB + 2, 200),
    ("float32", ddl.Min, 64 * KIB, 100),
    ("bool", ddl.Max, 100_003, 50),
    ("float32", ddl.Average, MIB + 4, 20),
    ("int32", ddl.Sum, 8 * MIB, 6),
]


def something_else(number: int) -> None:
    """Another collective, on the same lane or another, blocking or not."""
    rank, size = ddl.rank(), ddl.size()
    kind = number % 5
    if kind == 0:
        assert float(ddl.allreduce(np.full(1, float(rank)), op=ddl.Sum)[0]) == size * (size - 1) / 2
    elif kind == 1:
        assert ddl.broadcast_(np.full(3, rank), root=number % size).tolist() == [number % size] * 3
    elif kind == 2:
        assert ddl.allgather(np.full(rank, rank)).tolist() == [r for r in range(size) for _ in range(r)]
    elif kind == 3:
        assert float(ddl.allreduce_async(np.full(20_000, 2.0)).wait()[-1]) == 2.0
    else:
        ddl.barrier()


def again_and_again() -> int:
    rank, size, calls = ddl.rank(), ddl.size(), 0
    for (dtype, op, nbytes, often), even, odd in [
        (case, number % 2 == 0, number % 3 == 0) for number, case in enumerate([*CASES, *CASES[:-1]])
    ]:
        count = nbytes // contribution(dtype, op, 0, 1, 1).itemsize
        inputs = [contribution(dtype, op, rank, size, count, salt) for salt in range(SALTS)]
        want = [expected(dtype, op, size, count, salt) for salt in range(SALTS)]
        x = placed(inputs[0], shared=odd if rank % 2 else even)
        target = for_ddl(dtype, x)
        step = ddl.prepare_allreduce(target, op=op)
        for number in range(often):
            x[...] = inputs[number % SALTS]
            assert step() is target
            check_equal(x, want[number % SALTS], f"call {number} of {op.name} of {nbytes} bytes of {dtype}")
            if number % 13 == 0:
                something_else(number // 13)
            calls += 1
    return calls


@pytest.mark.few(1)
@pytest.mark.parametrize(("size", "transport"), [*itertools.product([2, 3], TRANSPORTS), (1, "shared"), (4, "hybrid")])
def test_the_right_values_again_and_again(size: int, transport: str) -> None:
    calls = 2 * sum(often for *_, often in CASES) - CASES[-1][-1]
    assert ranks.run(size, again_and_again, **connected(transport)) == [calls] * size


def several_at_once() -> List[float]:
    """Prepared operations of different kinds take turns, also on the same memory, and between asynchronous ones."""
    rank, size = ddl.rank(), ddl.size()
    x, big = np.zeros(4), np.zeros(100_000, np.float32)
    total, highest = ddl.prepare_allreduce(x, op=ddl.Sum), ddl.prepare_allreduce(x, op=ddl.Max)
    mean = ddl.prepare_allreduce(big)
    for number in range(200):
        x[:] = rank + number
        big[:] = 2 * rank + number
        work = ddl.allreduce_async(np.full(50_000, float(number)), op=ddl.Min)
        total()
        assert x.tolist() == [size * number + size * (size - 1) / 2] * 4
        x[:] = rank + number
        mean()
        assert float(big[0]) == float(big[-1]) == size - 1 + number
        highest()
        assert x.tolist() == [size - 1 + number] * 4
        assert float(work.wait()[-1]) == number
    return x.tolist()


@pytest.mark.few(1)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_several_take_turns(transport: str) -> None:
    assert ranks.run(4, several_at_once, **connected(transport)) == [[202.0] * 4] * 4


def lifetimes() -> Dict[str, Any]:
    """Who keeps what alive, counted."""
    x = np.full(1000, float(ddl.rank()))
    seen = weakref.ref(x)
    step = ddl.prepare_allreduce(x, op=ddl.Sum)
    before = sys.getrefcount(x)
    for _ in range(100):
        step()
    answer = {"references": sys.getrefcount(x) - before, "buffer": step.buffer is x, "repr": repr(step)}
    del x
    answer["alive"] = seen() is not None
    step()
    del step
    answer["gone"] = seen() is None
    if ddl.rank() == 0:  # not collective, does not block: one rank may prepare, and throw away, on its own
        for _ in range(100):
            ddl.prepare_allreduce(np.ones(10))
    small = ddl.prepare_allreduce(np.ones(10, np.int32), op=ddl.Sum)
    answer["result"] = small().tolist()
    kept = ddl.world().prepare_allreduce(np.full(2, 2.0), op=ddl.Product)
    answer["unchanged by others"] = kept().tolist()
    return answer


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_it_keeps_its_buffer_alive_and_nothing_else(transport: str) -> None:
    for answer in ranks.run(2, lifetimes, **connected(transport)):
        assert answer == {
            "references": 0,
            "buffer": True,
            "repr": "<ddl.PreparedOperation: allreduce(1000 x float64, sum)>",
            "alive": True,
            "gone": True,
            "result": [2] * 10,
            "unchanged by others": [4.0, 4.0],
        }


def refusals() -> List[Tuple[str, str]]:
    step = ddl.prepare_allreduce(np.ones(3, np.float32))
    read_only = np.ones(3)
    read_only.flags.writeable = False
    calls = [
        lambda: step(1),
        lambda: step(x=1),
        lambda: type(step)(),
        lambda: setattr(step, "buffer", None),
        lambda: ddl.prepare_allreduce(None),
        lambda: ddl.prepare_allreduce([1.0]),
        lambda: ddl.prepare_allreduce(np.ones((4, 4))[:, ::2]),
        lambda: ddl.prepare_allreduce(read_only),
        lambda: ddl.prepare_allreduce(np.ones(3, bool)),
        lambda: ddl.prepare_allreduce(np.ones(3, np.complex64), op="min"),
        lambda: ddl.prepare_allreduce(np.ones(3), op=17),
    ]
    said = []
    for call in calls:
        try:
            call()
            said.append(("accepted", ""))
        except Exception as error:  # noqa: BLE001 - the test looks at which one it is
            said.append((type(error).__name__, str(error)))
    assert step(*(), **{}).tolist() == [1.0] * 3  # nothing that was refused has been counted
    return said


def test_what_is_refused() -> None:
    words = ["without arguments", "without arguments", "", ""]
    words += ["NoneType", "list", "contiguous", "read-only", "bool", "complex numbers", "op"]
    for said in ranks.run(2, refusals):
        assert [kind for kind, _ in said[:2]] == ["TypeError"] * 2 and said[2][0] == "TypeError", said[:3]
        assert said[3][0] in ("AttributeError", "TypeError"), said[3]
        assert [kind for kind, _ in said[4:]] == ["InvalidArgument"] * 7, said
        assert all(word in text for word, (_, text) in zip(words, said)), said
