"""A hundred thousand ranks: what has to be planned, simulated and kept in memory for them. Times: docs/simulate.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tuning.machines import laid_out, machine_of

from ddl.errors import ConfigError
from ddl.tuning.select import Line
from ddl.tuning.simulate.simulation import SimulatedOperation, allreduces

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json
from tuning.machines import laid_out, machine_of
from ddl.tuning.simulate.models import model
from ddl.tuning.simulate.training import Workload, train

machine = machine_of(8, [125, 100], shared=True)
step = train(machine, laid_out(machine, "8x125x100"), Workload(model("resnet50"), 0.2))
with open("/proc/self/status") as file:  # not getrusage: that counts what the process was before it was this program
    peak = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
print(json.dumps([step.size, len(step.outcome.ends), step.outcome.events, len(step.buckets), peak]))
"""


def test_a_step_of_100_000_ranks_is_a_few_events_in_little_memory() -> None:
    line = [sys.executable, "-c", PROGRAM]
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    ended = subprocess.run(line, env=path, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    size, ranks, events, buckets, peak = json.loads(ended.stdout)
    assert size == 100_000
    assert ranks == 16  # one for all in multi-ring; a host's in leaders, and those of another that is folded in
    hops = 2 * (124 + 99)
    assert events < buckets * 2 * (2 * hops + 20)  # two pieces each; a message leaves and arrives; some meets
    assert peak < 256 << 20


def test_every_level_costs_events_by_its_length_only() -> None:
    lines = (Line(2**63, "multiring", 0, False),)
    for hosts in (10, 100, 1000):
        machine = machine_of(4, [hosts])
        result = allreduces(machine, laid_out(machine, f"4x{hosts}"), [SimulatedOperation(1 << 20)], lines=lines)
        assert result.messages == 2 * (3 + hosts - 1)
        assert len(result.ends) == 1


def test_too_much_is_refused_before_it_is_begun() -> None:
    """A flat ring of 20,000 ranks, ten pieces of it: a rank of each place in a host, 80,000 steps a piece."""
    machine = machine_of(8, [2500])
    ring = laid_out(machine, "20000")
    lines = (Line(2**63, "ring", 1 << 20, False, 2),)
    with pytest.raises(ConfigError, match="8 different ranks have .* steps"):
        allreduces(machine, ring, [SimulatedOperation(1 << 28)], lines=lines)
