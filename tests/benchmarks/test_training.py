"""``python -m benchmarks training``: its models, a small run of it, what it refuses, and its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest

from benchmarks.training import blocks as training_blocks
from benchmarks.training import command as training
from benchmarks.training import report as training_report

torch = pytest.importorskip("torch")
# Six processes load PyTorch at once, on whatever cores there are.

ROOT = Path(__file__).resolve().parents[2]

# An adapter that averages nothing, in the place of the real one: ranks drift apart.
BROKEN = """
from ddl import init, shutdown

def broadcast_parameters(state):
    pass

def DistributedOptimizer(optimizer, named_parameters):
    return optimizer
"""

# Averages, but wrongly: all ranks agree on gradients that are half as large as DDP's.
HALVED = """
import ddl
from ddl import init, shutdown

def broadcast_parameters(state):
    pass

def DistributedOptimizer(optimizer, named_parameters):
    def average(*_):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                ddl.allreduce_(parameter.grad.numpy())
                parameter.grad /= 2
    optimizer.register_step_pre_hook(average)
    return optimizer
"""


def bench(*options: str, path: Sequence[str] = (), cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join([*path, str(ROOT), os.environ.get("PYTHONPATH", "")])
    line = [sys.executable, "-m", "benchmarks", "training", "--models", "digits", "--rounds", "1", *options]
    environ = {**os.environ, "PYTHONPATH": search.rstrip(os.pathsep)}
    return subprocess.run(line, cwd=cwd, env=environ, capture_output=True, text=True, timeout=240)


# --- the models ---


@pytest.mark.few(1)
@pytest.mark.parametrize("name, millions", [("digits", 0.16), ("resnet", 25), ("transformer", 10)])
def test_models_have_the_stated_size_and_learn(name: str, millions: float) -> None:
    from benchmarks.training.models import MODELS, loss_of

    model = MODELS[name]
    network = model.make(1)
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(1e6 * millions, rel=0.1)
    batch = model.data(2)
    loss_of(network, batch).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in network.parameters())


def test_ranks_start_alike_with_different_data() -> None:
    from benchmarks.training.models import MODELS

    assert tuple(MODELS) == training.NAMES
    model = MODELS["digits"]
    for parameter, theirs in zip(model.make(1).parameters(), model.make(1).parameters()):
        assert torch.equal(parameter, theirs)
    assert not torch.equal(model.batches(2, 1)[0][0], model.batches(3, 1)[0][0])


# --- runs ---


@pytest.mark.processes
@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--steps", "5", "--contestants", "alone+malloc,ddl,ddp", "--json", str(tmp_path / "out.json")]
    done = bench(*options, "--plot", str(tmp_path / "out.png"))
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "out.json").read_text())
    assert facts["ranks"] == 2 and facts["machine"]["cores"] == os.cpu_count()
    results = facts["models"]["digits"]
    assert set(results) == {"alone+malloc", "ddl", "ddp"}
    for figures in results.values():
        assert 0 < figures["min_ms"] <= figures["step_ms"] <= figures["p99_ms"]
        assert figures["samples_per_s"] == pytest.approx(2 * 32 * 1e3 / figures["step_ms"])
        assert figures["own_mib"] > 1
    ddl, alone, ddp = results["ddl"], results["alone+malloc"], results["ddp"]
    assert ddl["exposed_ms"] == pytest.approx(ddl["step_ms"] - alone["step_ms"])
    assert ddl["speed_over_ddp"] == pytest.approx(ddp["step_ms"] / ddl["step_ms"])
    assert ddp["exposed_ms"] is None  # alone without the allocator setting did not run
    assert 0 <= ddl["waiting_ms"] < ddl["p99_ms"] and ddp["waiting_ms"] is None
    for name in results:
        assert any(line.startswith(name + " ") for line in done.stdout.splitlines())
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "adapter, complaint",
    [(BROKEN, "after 3 steps rank 1 has other weights than rank 0"), (HALVED, "from those of DDP")],
    ids=["ranks drift apart", "all agree on something else"],
)
def test_wrong_weights_end_with_1(tmp_path: Path, adapter: str, complaint: str) -> None:
    (tmp_path / "ddl_torch.py").write_text(adapter)
    done = bench("--steps", "2", "--contestants", "ddp,ddl", path=[str(tmp_path)], cwd=tmp_path)
    assert done.returncode == 1
    assert complaint in done.stderr, done.stderr


def test_a_wrong_option_ends_with_2() -> None:
    done = bench("--contestants", "ddl,horovod")
    assert done.returncode == 2
    assert "'horovod' is none of alone, alone+malloc, synced+malloc, ddl" in done.stderr


# --- figures ---


def report(*blocks: List[float], own: int = 0, busy: float = 0.5, probes: float = 100.0, **more: Any) -> Dict[str, Any]:
    """What one rank writes of blocks of these seconds; together with another such rank it had a core for a second."""
    memory = {"own": own << 20, "own_peak": (own + 1) << 20, "rss": 0, "rss_peak": 0}
    whole = {"seconds": 1.0, "cpu_seconds": 0.5, "busy_seconds": busy + 0.5}
    facts = {"cpu_seconds": 0.1, "whole": whole, "probes": [probes, probes], **more}
    written = [{"seconds": seconds, **facts} for seconds in blocks]
    return {"batch": 8, "samples": "images", "blocks": written, "memory": memory}


def test_figures() -> None:
    starts = {
        "alone": [[report([0.1, 0.2], [0.3], own=10), report([0.1, 0.1], [0.1])]],
        "alone+malloc": [[report([0.1], own=20), report([0.15])]],
        # Rank 1 is the slower one, over all rounds together.
        "ddl": [
            [report([0.2], own=50, waiting_seconds=0.01), report([0.1], waiting_seconds=0.03)],
            [report([0.2], own=60, waiting_seconds=0.02), report([0.4, 0.3], waiting_seconds=0.02)],
        ],
        "ddp": [[report([0.5], busy=0.55), report([0.4])]],
        "ddp+malloc": [[report([0.45]), report([0.4])]],
    }
    results = training_report.figures(training_blocks.choose(starts, 1))
    ddl = results["ddl"]
    assert (ddl.step_ms, ddl.min_ms, ddl.p99_ms) == pytest.approx((300, 100, 400))
    assert (ddl.exposed_ms, ddl.over_alone_ms) == pytest.approx((150, 100))
    assert (ddl.extra_mib, ddl.extra_peak_mib) == pytest.approx((40, 40))
    assert (ddl.speed_over_ddp, ddl.waiting_ms, ddl.steps) == pytest.approx((500 / 300, 20, 3))
    assert (ddl.other_load, results["ddp"].other_load) == pytest.approx((0, 0.03))
    assert ddl.samples_per_s == pytest.approx(2 * 8 / 0.3)
    assert results["ddp"].exposed_ms == pytest.approx(300) and results["ddp"].waiting_ms is None
    assert results["ddp+malloc"].exposed_ms == pytest.approx(300)
    assert training_report.fastest_ddp(results) == "ddp+malloc"
    rows = training_report.table(results).splitlines()
    assert rows[3].split()[:7] == ["ddl", "300.00", "100.00", "400.00", "100.00", "150.00", "100.00"]
    assert rows[1].split()[0] == "alone" and "images/s" in rows[0]


def test_the_floor() -> None:
    results = training_report.figures(
        training_blocks.choose({name: [[report([seconds])]] for name, seconds in (("ddl", 0.2), ("ddp", 0.3))}, 1)
    )
    assert training.too_slow("resnet", results, 1.0) is None
    assert training.too_slow("resnet", results, 1.6) == "resnet: 1.500 times as fast as ddp, under the floor of 1.6"
    only = {"ddl": results["ddl"]}
    assert training.too_slow("resnet", only, 1.0) == "resnet: --floor needs ddl and one of the ddp contestants"


# --- what is compared ---


def two(*blocks: List[float], **facts: Any) -> List[Dict[str, Any]]:
    return [report(*blocks, **facts), report(*blocks, **facts)]


def test_disturbed_blocks_are_left_out() -> None:
    near, far, disturbed = two([1.0], [2.0]), two([3.0], [4.0], probes=500.0), two([5.0], [6.0], busy=0.8)
    starts = {"ddl": [far, far, near, disturbed], "ddp": [near, far, far]}
    chosen = training_blocks.choose(starts, 2)
    assert chosen.comparable and chosen.enough
    assert chosen.distances == [(100, 100), (500, 500)]
    compared = {
        name: [(block.round, block.seconds[0][0]) for block in blocks] for name, blocks in chosen.compared.items()
    }
    both = [3.0, 4.0]
    assert compared == {"ddl": [(n, s) for n in (0, 1) for s in both], "ddp": [(n, s) for n in (1, 2) for s in both]}
    assert len(chosen.blocks["ddl"]) == 8 and chosen.blocks["ddl"][6].others == pytest.approx(0.28)
    assert training_report.about(chosen) == "8 of 14 blocks of steps compared, cores 500-500 ns apart"
    assert training_blocks.choose(starts, 4).enough and not training_blocks.choose(starts, 5).enough


@pytest.mark.parametrize("facts", [{"busy": 0.8}, {"probes": 500.0}], ids=["never quiet", "never at one distance"])
def test_all_is_pooled_where_nothing_is_alike(facts: Dict[str, float]) -> None:
    chosen = training_blocks.choose({"ddl": [two([1.0])], "ddp": [two([2.0], **facts)]}, 1)
    assert not chosen.comparable and not chosen.enough and chosen.compared == chosen.blocks
    assert training_report.about(chosen).startswith("DISTURBED")
    assert training_report.figures(chosen)["ddp"].step_ms == pytest.approx(2000)


def test_a_machine_that_is_not_probed_has_one_distance() -> None:
    chosen = training_blocks.choose({"ddl": [two([1.0], probes=0.0)], "ddp": [two([2.0], probes=0.0)]}, 1)
    assert chosen.enough and chosen.distances == []
