"""Upper bounds of time, for the few tests whose point they are: ``at_most(0.05, measured, "of a core")``.

What a test has measured counts in shares of a control that it measured in the same run: processor time in shares of the
time that went by, or of the same work done by hand. So a slow machine slows both. A machine can still hold up one of
the two, and therefore both are measured once more before a test fails. Figures without a control belong in
``benchmarks/`` and ``make churn``, not in tests.
"""

from __future__ import annotations

from typing import Callable, List, Sequence, Tuple

#: (what was measured, its control), of each rank or attempt.
Measured = Sequence[Tuple[float, float]]


def at_most(share: float, measure: Callable[[], Measured], what: str) -> None:
    """Fail if ``measure()`` returns twice in a row something that is more than ``share`` of its control."""
    tries: List[Measured] = []
    for _ in range(2):
        tries.append(measure())
        assert tries[-1] and all(control > 0 for _, control in tries[-1]), tries
        if all(value <= share * control for value, control in tries[-1]):
            return
    shown = [", ".join(f"{value:.4g} of {control:.4g}" for value, control in measured) for measured in tries]
    raise AssertionError(
        f"{what}: at most {share:g} of the control is allowed, and twice it was more: {shown[0]}; then {shown[1]}"
    )
