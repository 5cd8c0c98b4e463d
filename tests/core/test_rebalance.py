"""``DDL_REBALANCE``: the others do the work of late ranks, from the same operation on, and all results stay right."""

from __future__ import annotations

import time
from typing import Any, List, Tuple

import numpy as np
import pytest
import ranks
from core.values import check_equal, contribution, expected
from said import Said

import ddl
from ddl._comm import rebalance
from ddl._comm.rebalance import FEWEST
from ddl.bootstrap import stragglers
from ddl.store import pace

pytestmark = pytest.mark.processes

SIZE, MIB = 4, 1 << 20
BY = 0.04  #: seconds that a rank comes late
MANY = FEWEST + 1  #: as many as it takes
CASES: List[Tuple[str, ddl.ReduceOp, int]] = [
    ("float32", ddl.Average, 8 * MIB + 4),
    ("float64", ddl.Sum, MIB),
    ("float16", ddl.Sum, 100_002),
    ("int32", ddl.Max, 3 * MIB),
    ("uint8", ddl.Product, 65_537),
    ("float32", ddl.Sum, 8),
]


def right_while_plans_change() -> int:
    """Change who counts as late between calls of all kinds, prepared and under way ones among them."""
    rank, use, calls = ddl.rank(), ddl.world()._group._use_late, 0
    prepared: Any = {}
    for round_, late in enumerate([(), (3,), (0,), (1, 2), (), (2,)]):
        use(late)
        for salt, (dtype, op, size) in enumerate(CASES):
            salt += 10 * round_
            what = f"{dtype} {op.name}, late: {late}"
            own = contribution(dtype, op, rank, SIZE, size // np.dtype(dtype).itemsize, salt)
            wanted = expected(dtype, op, SIZE, own.size, salt)
            check_equal(ddl.allreduce(own, op=op), wanted, what)
            under_way = ddl.allreduce_async(own, op=op)
            use(late)  # what is under way keeps its plan
            check_equal(under_way.wait(), wanted, f"{what}, under way")
            if size not in prepared:
                buffer = own.copy()
                prepared[size] = buffer, ddl.world().prepare_allreduce(buffer, op=op)
            buffer, call = prepared[size]
            buffer[...] = own
            call()
            check_equal(buffer, wanted, f"{what}, prepared")
            calls += 3
    return calls


def test_results_are_right_whoever_is_late() -> None:
    assert ranks.run(SIZE, right_while_plans_change) == [6 * len(CASES) * 3] * SIZE


def late_for_a_while(seconds: float) -> Tuple[List[Tuple[int, ...]], List[str]]:
    """Rank 2 comes late until the plans have changed, and then no more; return what the plans were, and was said."""
    stragglers.INTERVAL = rebalance._SECONDS = 0.2
    handler = Said()
    ddl.init()
    plans: List[Tuple[int, ...]] = [()]
    x, going, end = np.ones(300_000, np.float32), np.ones(1), time.monotonic() + seconds
    while going[0]:
        if ddl.rank() == 2 and len(plans) == 1:
            time.sleep(BY)
        ddl.allreduce_(x)
        late = ddl.world()._group.topology.late
        if late != plans[-1]:
            plans.append(late)
        assert time.monotonic() < end, plans
        going[0] = len(plans) < 3
        ddl.allreduce_(going, op=ddl.Max)
    assert (x == 1).all()
    return plans, [line for line in handler.texts if "all-reduces" in line]


@pytest.mark.alone
def test_a_late_rank_is_spared_until_it_is_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's store, which is in this process, looks at short windows, and for more than a busy machine is late."""
    monkeypatch.setattr(pace, "OPERATIONS", 8)
    monkeypatch.setattr(pace, "FLOOR", 0.4 * BY)
    answers = ranks.run(MANY, late_for_a_while, 100.0, initialise=False, env={"DDL_REBALANCE": "1"})
    assert [plans for plans, _ in answers] == [[(), (2,), ()]] * MANY
    assert [lines for _, lines in answers] == [
        [
            "rank 0: in large all-reduces the others do the work of rank 2, from now on",
            "rank 0: in large all-reduces all ranks do the same work again",
        ],
        *([[]] * (MANY - 1)),
    ]


def plans_stay(seconds: float) -> Tuple[Tuple[int, ...], List[str]]:
    stragglers.INTERVAL = rebalance._SECONDS = 0.05
    handler = Said()
    ddl.init()
    x, going, end = np.ones(1000, np.float32), np.ones(1), time.monotonic() + seconds
    while going[0]:
        if ddl.rank() == 1:
            time.sleep(0.002)
        ddl.allreduce_(x)
        going[0] = time.monotonic() < end
        ddl.allreduce_(going, op=ddl.Min)
    return ddl.world()._group.topology.late, [text for text in handler.texts if "REBALANCE" in text]


NOTHING = "rank 0: DDL_REBALANCE changes nothing here: "


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("size", "env", "told"),
    [
        (FEWEST, {"DDL_REBALANCE": "1"}, [f"{NOTHING}it takes 6 ranks or more, and there are 5"]),
        (MANY, {}, []),
        (MANY, {"DDL_REBALANCE": "1", "DDL_SHM": "0"}, [f"{NOTHING}not all ranks share memory"]),
        (
            *(MANY, {"DDL_REBALANCE": "1", "DDL_DETERMINISTIC": "1"}),
            [f"{NOTHING}sums are to have the same bits, whoever is late"],
        ),
    ],
    ids=["few ranks", "not wanted", "no shared memory", "deterministic"],
)
def test_where_nothing_is_rebalanced_it_is_said(size: int, env: Any, told: List[str]) -> None:
    answers = ranks.run(size, plans_stay, 1.0, initialise=False, env=env)
    assert answers == [((), told), *([((), [])] * (size - 1))]
