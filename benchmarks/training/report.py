"""What ``python -m benchmarks training`` makes of the measurements: figures per contestant, a table, a picture.

A contestant's step time is that of its slower rank: the median over the steps of all compared blocks, rank by rank,
then the larger one. (Not the largest of each step: ``alone`` has no common steps, so that would be another rule.)
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional

from benchmarks.training.blocks import Block, Chosen, Start
from benchmarks.training.start import CONTESTANTS
from ddl.tools.files import say_written

__all__ = ["TrainingFigures", "about", "fastest_ddp", "figures", "plot", "table"]

MIB = float(1 << 20)


@dataclass
class TrainingFigures:
    """Of one contestant and model. Times in ms per step; None where what they are compared with did not run.

    exposed_ms: beyond ``alone`` under the same allocator setting. over_alone_ms: beyond ``alone`` as torch comes.
    speed_over_ddp: how many times as fast as plain ``ddp``. cpu_ms: of all threads of a rank.
    extra_mib, extra_peak_mib: memory of a rank beyond that of ``alone`` under the same setting, after and at the
    fullest point of a step; pages shared by ranks count in parts, mapped files not. rss_mib counts them in full.
    """

    step_ms: float
    min_ms: float
    p99_ms: float
    cpu_ms: float
    samples_per_s: float
    samples: str
    own_mib: float
    own_peak_mib: float
    rss_mib: float
    rss_peak_mib: float
    other_load: float  # cores that other programs had meanwhile, in the busiest block compared
    steps: int  # of each rank, that were compared
    waiting_ms: Optional[float] = None  # of DDL: in step(), for what was not averaged yet
    exposed_ms: Optional[float] = None
    over_alone_ms: Optional[float] = None
    speed_over_ddp: Optional[float] = None
    extra_mib: Optional[float] = None
    extra_peak_mib: Optional[float] = None


def _p99(times: List[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(0.99 * len(times)))]


def _of(blocks: List[Block], starts: List[Start]) -> TrainingFigures:
    by_rank = [[1e3 * s for block in blocks for s in block.seconds[rank]] for rank in range(len(blocks[0].seconds))]
    slower = max(by_rank, key=statistics.median)
    reports = [report for start in starts for report in start]
    step_ms = statistics.median(slower)
    waits = [seconds for block in blocks for seconds in block.waiting_seconds]
    memory = {
        kind: max(report["memory"][kind] for report in reports) / MIB for kind in ("own", "own_peak", "rss", "rss_peak")
    }
    return TrainingFigures(
        step_ms=step_ms,
        min_ms=min(slower),
        p99_ms=_p99(slower),
        cpu_ms=1e3 * statistics.median(seconds for block in blocks for seconds in block.cpu_seconds),
        samples_per_s=1e3 * len(by_rank) * reports[0]["batch"] / step_ms,
        samples=reports[0]["samples"],
        **{f"{kind}_mib": value for kind, value in memory.items()},
        other_load=max(block.others for block in blocks),
        steps=len(slower),
        waiting_ms=1e3 * statistics.median(waits) if waits else None,
    )


def _reference(name: str, results: Dict[str, TrainingFigures]) -> Optional[TrainingFigures]:
    """Return ``alone`` under the contestant's allocator setting."""
    return results.get("alone+malloc" if CONTESTANTS[name].malloc else "alone")


def figures(chosen: Chosen) -> Dict[str, TrainingFigures]:
    """Return the figures of every contestant."""
    results = {name: _of(blocks, chosen.starts[name]) for name, blocks in chosen.compared.items()}
    for name, result in results.items():
        reference, plain, ddp = _reference(name, results), results.get("alone"), results.get("ddp")
        if reference is not None:
            result.exposed_ms = result.step_ms - reference.step_ms
            result.extra_mib = result.own_mib - reference.own_mib
            result.extra_peak_mib = result.own_peak_mib - reference.own_peak_mib
        if plain is not None:
            result.over_alone_ms = result.step_ms - plain.step_ms
        if ddp is not None:
            result.speed_over_ddp = ddp.step_ms / result.step_ms
    return results


def fastest_ddp(results: Dict[str, TrainingFigures]) -> Optional[str]:
    """Return the name of the fastest variant of DDP over gloo that ran, or None."""
    names = [name for name in results if name.startswith("ddp") and "over-ddl" not in name]
    return min(names, key=lambda name: results[name].step_ms) if names else None


def _cell(value: Optional[float], width: int, digits: int, unit: str = "") -> str:
    return f"{'-' if value is None else f'{value:.{digits}f}{unit}':>{width}}"


def about(chosen: Chosen) -> str:
    """Return a line on what is compared."""
    total, used = (sum(map(len, groups.values())) for groups in (chosen.blocks, chosen.compared))
    if not chosen.comparable:
        return f"DISTURBED: no distance at which everyone has quiet blocks; all {total} are pooled, ratios say little"
    first = next(iter(chosen.compared.values()))[0]
    apart = ""
    if chosen.distances:
        apart = ", cores {:.0f}-{:.0f} ns apart".format(*chosen.distances[first.distance])
    return f"{used} of {total} blocks of steps compared{apart}"


def table(results: Dict[str, TrainingFigures]) -> str:
    """Return the table for people."""
    samples = next(iter(results.values())).samples
    head = f"{'':16}{'step ms':>9}{'min':>9}{'p99':>9}{'CPU ms':>9}{'exposed ms':>12}{'over alone':>12}"
    lines = [head + f"{'against ddp':>13}{samples + '/s':>13}{'extra MiB':>11}{'at peak':>9}{'others':>8}{'steps':>7}"]
    for name, result in results.items():
        row = f"{name:16}" + "".join(
            _cell(v, 9, 2) for v in (result.step_ms, result.min_ms, result.p99_ms, result.cpu_ms)
        )
        row += (
            _cell(result.exposed_ms, 12, 2)
            + _cell(result.over_alone_ms, 12, 2)
            + _cell(result.speed_over_ddp, 13, 2, " x")
        )
        row += _cell(result.samples_per_s, 13, 1) + _cell(result.extra_mib, 11, 1) + _cell(result.extra_peak_mib, 9, 1)
        lines.append(row + _cell(result.other_load, 8, 2) + f"{result.steps:>7}")
    lines.append(
        "step: median of the slower rank. exposed: beyond alone, or beyond alone+malloc for ddl and +malloc; over "
        "alone: beyond\nalone in any case. extra: memory of a rank beyond that of alone or alone+malloc, in the same "
        "way; shared pages count in parts.\nothers: cores that other programs kept busy meanwhile, at most; steps: how "
        "many were compared."
    )
    return "\n".join(lines)


def plot(everything: Dict[str, Dict[str, TrainingFigures]], path: Path) -> None:
    """Draw a panel of bars per model into a PNG: what computing alone takes, and what is exposed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(everything), figsize=(5 * len(everything), 4.2), squeeze=False)
    for axes, (model, results) in zip(panels[0], everything.items()):
        names = list(results)[::-1]
        exposed = [max(0.0, results[name].exposed_ms or 0.0) for name in names]
        computing = [results[name].step_ms - more for name, more in zip(names, exposed)]
        axes.barh(names, computing, color="#8fa8c8", label="computing (alone)")
        bars = axes.barh(names, exposed, left=computing, color="#d0583f", label="exposed communication")
        axes.bar_label(bars, [f"{results[name].step_ms:.1f}" for name in names], padding=3, fontsize=8)
        axes.set_xlim(0, 1.15 * max(result.step_ms for result in results.values()))
        axes.set_title(model)
        axes.set_xlabel("ms per step (median)")
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    say_written(path)
