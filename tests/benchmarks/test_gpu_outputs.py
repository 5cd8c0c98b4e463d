"""What ``python -m benchmarks gpu`` makes of outputs: of pytest's, and of measured times, with bounds and targets."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from benchmarks.gpu.allreduce import missed
from benchmarks.gpu.bounds import LinkRates, bounds, rates_of
from benchmarks.gpu.pytest_output import outcomes
from benchmarks.gpu.summary import figure_of

pytest.importorskip("torch")
OUTPUT = """
tests/gpu/test_verbs.py::test_other_verbs[2] PASSED                      [ 16%]
tests/gpu/test_verbs.py::test_other_verbs[with a space] FAILED           [ 33%]
tests/gpu/test_frameworks.py::test_arrays_of_cupy SKIPPED (there is no cupy) [ 40%]
tests/gpu/test_verbs.py::test_that_hangs """
END = "\nSKIPPED [3] tests/gpu/test_frameworks.py:60: there is no cupy\n"


def test_output_of_pytest() -> None:
    cut_off = outcomes(OUTPUT)
    assert (cut_off["passed"], cut_off["failed"]) == (1, ["test_other_verbs[with a space]"])
    assert cut_off["did not end"] == "test_that_hangs"
    assert outcomes(END)["skipped"] == {"there is no cupy": 3}
    text = figure_of({"status": "failed", "result": cut_off})
    assert text == "1 passed, 1 failed, 0 skipped; did not end: test_that_hangs"


RATES = LinkRates(down=50e9, up=40e9, memory=200e9)


def test_bounds() -> None:
    least = bounds(100 << 20, 2, 2 << 20, reduction=0.010, rates=RATES)
    moved = 2 * (100 << 20)
    assert (least.down, least.up) == pytest.approx((moved / 50e9, moved / 40e9))
    assert least.memory == pytest.approx(4 * moved / 200e9)
    assert least.slowest == "reduction"
    assert least.all == pytest.approx(0.010 + 0.02 * (least.down + least.up))
    small = bounds(8, 2, 2 << 20, reduction=1e-6, rates=RATES)
    assert small.all == pytest.approx(small.down + small.up + 1e-6)  # one piece: the stages follow one another
    assert bounds(1 << 30, 8, 2 << 20, reduction=0.01, rates=RATES).slowest == "up"


def test_rates_are_those_of_a_real_gpu_only() -> None:
    copies: Dict[str, Any] = {"rates": {"both_down": 1e9, "both_up": 2e9}, "fake": False}
    steps = {"probe.copies": {"result": copies}, "probe.memory": {"result": {"bytes_per_second": 3e9}}}
    assert rates_of(steps) == LinkRates(1e9, 2e9, 3e9)
    copies["fake"] = True
    assert rates_of(steps) is None and rates_of({}) is None


def test_targets() -> None:
    figure = {"share of the bound": 0.7, "times as fast as gloo": 1.5}
    assert missed({1 << 20: figure}) == []
    assert missed({16 << 20: figure}) == [
        "16 MiB: 70 % of the bound, under 80 %",
        "16 MiB: 1.50 times as fast as gloo, under 2",
    ]
    assert missed({16 << 20: {}}) == []
