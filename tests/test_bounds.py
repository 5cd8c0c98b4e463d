"""A bound is met in the first or the second attempt, or the test fails and says what both have measured."""

from __future__ import annotations

from typing import List

import pytest
from bounds import Measured, at_most

GOOD, BAD = [(0.1, 2.0), (0.0, 0.5)], [(0.1, 2.0), (0.03, 0.5)]


@pytest.mark.parametrize(("answers", "left"), [([GOOD, BAD], 1), ([BAD, GOOD], 0)])
def test_what_is_measured_once_where_it_is_good_and_twice_where_it_is_not(answers: List[Measured], left: int) -> None:
    waiting = list(answers)
    at_most(0.05, lambda: waiting.pop(0), "of a core")
    assert len(waiting) == left


def test_what_is_over_twice_fails() -> None:
    said = "of a core: at most 0.05 of the control is allowed, and twice it was more: 0.1 of 2, 0.03 of 0.5; then"
    with pytest.raises(AssertionError, match=said):
        at_most(0.05, lambda: BAD, "of a core")


@pytest.mark.parametrize("measured", [[], [(1.0, 0.0)]])
def test_a_control_that_measured_nothing_fails(measured: Measured) -> None:
    with pytest.raises(AssertionError):
        at_most(0.05, lambda: measured, "of a core")
