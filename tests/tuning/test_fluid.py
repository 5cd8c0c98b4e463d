"""Virtual time by hand: flows that share, what others leave over, token buckets, timers."""

from __future__ import annotations

from typing import Dict, List, Tuple

import pytest

from ddl.errors import InvalidState
from ddl.tuning.simulate.fluid import Fluid, Needs


def ends(resources: List[Tuple[float, ...]], flows: Dict[str, Tuple[float, Needs]]) -> Dict[str, float]:
    """When each flow ends, if all begin at 0."""
    fluid, ended = Fluid(), {}
    for resource in resources:
        fluid.resource(*resource)
    for name, (amount, needs) in flows.items():
        fluid.flow(amount, needs, lambda name=name: ended.__setitem__(name, fluid.now))
    fluid.run()
    return ended


def test_one_flow_has_all() -> None:
    assert ends([(10.0,)], {"a": (50, ((0, 1.0),))}) == {"a": 5}


def test_two_flows_have_half_each_until_one_ends() -> None:
    flows = {"a": (10, ((0, 1.0),)), "b": (30, ((0, 1.0),))}
    assert ends([(10.0,)], flows) == {"a": 2, "b": 4}


def test_a_flow_that_stands_for_three_leaves_a_quarter() -> None:
    flows = {"three": (25, ((0, 3.0),)), "one": (25, ((0, 1.0),))}
    assert ends([(10.0,)], flows) == {"three": 10, "one": 10}


def test_what_a_flow_cannot_use_the_others_get() -> None:
    """``narrow`` gets 2 of 10 through its other port, so ``wide`` gets 8: max-min, not equal parts."""
    flows = {"narrow": (4, ((0, 1.0), (1, 1.0))), "wide": (16, ((0, 1.0),))}
    assert ends([(10.0,), (2.0,)], flows) == {"narrow": 2, "wide": 2}


def test_a_bucket_lets_its_burst_pass() -> None:
    """20 tokens at 50 a second, refilled by 10: empty after 0.5 s and 25 bytes; the other 25 take 2.5 s."""
    (end,) = ends([(10.0, 20.0, 50.0)], {"a": (50, ((0, 1.0),))}).values()
    # It counts as empty below a 64th, so that its rate does not flicker: at most so much is not used.
    assert end == pytest.approx(3.0, abs=20 / 64 / 10)


def test_a_bucket_fills_again_while_nothing_passes() -> None:
    fluid = Fluid()
    fluid.resource(10.0, 20.0, 1e9)
    seen: List[float] = []

    def again() -> None:
        seen.append(fluid.now)
        fluid.after(2.0, lambda: fluid.flow(19.0, ((0, 1.0),), lambda: seen.append(fluid.now)))

    fluid.flow(19.0, ((0, 1.0),), again)
    fluid.run()
    assert seen == pytest.approx([0.0, 2.0], abs=1e-6)


def test_timers_come_in_order_and_at_once_in_the_order_of_calls() -> None:
    fluid, seen = Fluid(), []
    for seconds, name in ((2.0, "late"), (1.0, "a"), (1.0, "b"), (0.0, "now")):
        fluid.after(seconds, lambda name=name: seen.append((fluid.now, name)))
    fluid.run()
    assert seen == [(0.0, "now"), (1.0, "a"), (1.0, "b"), (2.0, "late")]
    assert fluid.events == 4


def test_nothing_that_limits_is_an_error() -> None:
    with pytest.raises(InvalidState, match="burst has no limit"):
        ends([(10.0, 20.0)], {"a": (50, ((0, 1.0),))})
