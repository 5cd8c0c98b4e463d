"""Many small and some large operations of all kinds, blocking and in the background, with random delays; all checked.

    make stress                                     a million operations on two ranks, then on four
    make stress ARGS="-k 'two'" STRESS_SEED=7       the same sequence again

STRESS_OPERATIONS and STRESS_SEED set the length and the sequence; the normal test run is short and always the same.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Dict, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected
from stress import program
from stress.operations import WEIGHTS, Operation, Values, sequence

import ddl

#: Of the two main cases; the others run a tenth.
OPERATIONS = int(os.environ.get("STRESS_OPERATIONS", "20000"))
SEED = int(os.environ.get("STRESS_SEED", "1"))
#: Far more than it takes on a slow machine (some 100 µs an operation); what hangs is ended by DDL_TIMEOUT long before.
LIMIT_S = 300 + OPERATIONS / 100

#: Ranks, operations, and how they are connected.
CASES: Dict[str, Tuple[int, int, Dict[str, Any]]] = {
    "two": (2, OPERATIONS, connected("shared")),
    "four": (4, OPERATIONS, connected("shared")),
    # Two meets, also for the smallest.
    "four-direct": (4, OPERATIONS // 10, connected("shared", DDL_ALGORITHM="direct")),
    # Byte rings, in turns with plans that meet (for the collectives that the algorithm does not offer).
    "two-ring": (2, OPERATIONS // 10, connected("shared", DDL_ALGORITHM="ring")),
    "four-doubling": (4, OPERATIONS // 10, connected("shared", DDL_ALGORITHM="recursive_doubling")),
    "four-on-two-hosts": (4, OPERATIONS // 10, connected("hybrid")),
}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(LIMIT_S + 15)
@pytest.mark.parametrize("case", list(CASES))
def test_random_operations_give_the_right_results(case: str) -> None:
    size, operations, layout = CASES[case]
    answers = ranks.run(size, program.run_operations, SEED, operations, timeout=LIMIT_S, **layout)
    assert [checked for checked, _ in answers] == [operations] * size
    print(f"{case}: seed {SEED}, {operations} operations on {size} ranks in {max(s for _, s in answers):.1f} s")


def test_the_sequence_is_the_same_for_the_same_seed() -> None:
    assert list(sequence(3, 500, 4)) == list(sequence(3, 500, 4))
    assert list(sequence(3, 500, 4)) != list(sequence(4, 500, 4))


def test_every_verb_and_size_is_drawn() -> None:
    drawn = list(sequence(1, 5000, 4))
    assert {operation.verb for operation in drawn} == set(WEIGHTS)
    assert min(operation.count for operation in drawn) == 1
    assert max(operation.count for operation in drawn) == 1 << 20
    assert {(operation.shared, operation.background) for operation in drawn} == {
        (shared, background) for shared in (True, False) for background in (True, False)
    }


@pytest.mark.parametrize("op", [ddl.Sum, ddl.Average, ddl.Min, ddl.Max], ids=["sum", "average", "min", "max"])
def test_what_is_expected_is_what_numpy_makes_of_what_ranks_bring(op: ddl.ReduceOp) -> None:
    values = Values(4)
    combine = {ddl.Sum: np.sum, ddl.Average: np.mean, ddl.Min: np.min, ddl.Max: np.max}[op]
    for number in (0, 1, 203, 204, 999_999):
        operation = Operation(number, "allreduce", 1000, "float64", op, 0, True, False)
        brought = np.empty((4, 1000))
        for rank in range(4):
            values.fill(brought[rank], operation, rank)
            assert np.array_equal(brought[rank], values.brought(operation, rank))
        assert np.array_equal(values.expected(operation, 0), combine(brought, axis=0))


def test_results_of_operations_near_one_another_differ() -> None:
    """What is left over from the turn before, or from two turns before, must show."""
    values = Values(4)
    first = Operation(0, "allreduce", 1, "int64", ddl.Sum, 0, True, False)
    results = [values.reduced(replace(first, number=number))[0].item() for number in range(2000)]
    for number in range(2000 - 8):
        assert len(set(results[number : number + 8])) == 8


def wrong_on_purpose() -> str:
    """Hand the check a result that is one operation old."""
    stress = program.Stress(seed=5)
    x = np.empty(3)
    operation = Operation(41, "allreduce_", 3, "float64", ddl.Sum, 0, False, False)
    stress.values.fill(x, operation, stress.comm.rank)
    stress.comm.allreduce_(x, op=ddl.Sum)
    stress.check(operation, x)
    with pytest.raises(AssertionError) as caught:
        stress.check(replace(operation, number=42), x)
    return str(caught.value)


@pytest.mark.processes
def test_a_wrong_result_names_seed_rank_operation_and_size() -> None:
    for rank, text in enumerate(ranks.run(2, wrong_on_purpose)):
        assert text.startswith(f"seed 5, rank {rank} of 2, operation 42: 3 of 3 elements (24 bytes) are wrong"), text
        assert "repeat with STRESS_SEED=5" in text
