"""The model against all-reduces that were measured on three layouts: benchmarks/predictions recorded them.

Within 10 % of the median at every size, from the look at the links that was taken in the same run. To measure anew:
``python -m benchmarks.predictions.simulate_check --json tests/tuning/measured.json``.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from ddl._comm.group import discover
from ddl.tools.simulate.description import parse
from ddl.tuning.simulate.simulation import SimulatedOperation, allreduces

RECORDED = json.loads((Path(__file__).resolve().parent / "measured.json").read_text(encoding="utf-8"))["layouts"]
CASES = [(layout, int(nbytes)) for layout, record in RECORDED.items() for nbytes in record["seconds"]]


def test_three_layouts_and_sizes_from_256_kib_to_32_mib_were_measured() -> None:
    assert set(RECORDED) == {"two hosts", "four hosts", "two racks"}
    for layout in RECORDED:
        sizes = [nbytes for other, nbytes in CASES if other == layout]
        assert min(sizes) == 256 << 10 and max(sizes) == 32 << 20 and len(sizes) == 8


@pytest.mark.parametrize(("layout", "nbytes"), CASES)
def test_the_model_is_within_a_tenth(layout: str, nbytes: int) -> None:
    machine = parse(RECORDED[layout]["machine"]).machine
    modelled = allreduces(machine, discover(machine.hosts()), [SimulatedOperation(nbytes)]).seconds
    measured = statistics.median(RECORDED[layout]["seconds"][str(nbytes)])
    assert modelled == pytest.approx(measured, rel=0.1)
