"""From calls to figures, from figures to tables, floors and exit statuses: no process is started here."""

from __future__ import annotations

import argparse
from typing import Any, Dict, List

import pytest

from benchmarks import regimes
from benchmarks.collectives import command as collectives
from benchmarks.collectives import table
from ddl.text.units import duration
from ddl.tools.bench.figures import Figures, Sample, bus_factor, merge, quantile
from ddl.tools.bench.report import details


def sample(median: float, probes: Any = (), round: int = 0) -> Sample:
    return Sample(round, [median * 0.5, median, median * 2], cpu=3 * median, calls=3, probes=tuple(probes))


def test_quantiles_interpolate():
    assert [quantile([1.0, 2.0, 4.0], q) for q in (0, 0.25, 0.5, 0.75, 1)] == [1, 1.5, 2, 3, 4]
    assert quantile([7.0], 0.99) == 7


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [("allreduce", 2, 1), ("allreduce", 4, 1.5), ("allgather", 4, 0.75), ("broadcast", 4, 1), ("alltoall", 2, 0.5)],
)
def test_bus_bandwidth_is_that_of_nccl_tests(collective: str, ranks: int, factor: float):
    assert bus_factor(collective, ranks) == factor


def test_figures_of_calls():
    figures = Figures.of([sample(1e-3), sample(3e-3)], nbytes=6_000_000, factor=1.5)
    assert figures.calls == 6 and figures.min == 0.5e-3
    assert figures.median == pytest.approx(1.75e-3)  # of 0.5 1 1.5 2 3 6
    assert figures.algbw == pytest.approx(6e6 / 1.75e-3 / 1e9)
    assert figures.busbw == pytest.approx(1.5 * figures.algbw)
    assert figures.cpu_per_gb == pytest.approx((3e-3 + 9e-3) / (6 * 6e6 / 1e9))
    assert figures.round_medians == [1e-3, 3e-3]
    assert figures.quantiles["0"] == 0.5e-3 and figures.quantiles["1"] == 6e-3


def rank(seconds: Dict[int, List[float]]) -> Dict[str, Any]:
    rows = {str(n): {"seconds": s, "cpu": 1.0, "calls": len(s), "probes": [0, 0]} for n, s in seconds.items()}
    return {"sizes": rows, "version": "1"}


def test_a_call_takes_as_long_as_its_slowest_rank():
    merged = merge(3, [rank({8: [1, 2], 1 << 20: [1, 5]}), rank({8: [9, 9], 1 << 20: [4, 2]})])
    assert merged[8].seconds == [1, 2]  # back to back: rank 0 speaks for all
    assert merged[1 << 20].seconds == [4, 5]
    assert merged[8].cpu == 2 and merged[8].round == 3 and merged[8].probes == ()


def test_distances_are_parted_at_gaps():
    assert regimes.groups([500, 100, 110, 480, 130, 41]) == [(41, 41), (100, 130), (480, 500)]
    assert regimes.groups([]) == []


def test_only_samples_of_one_distance_are_compared():
    near, far, moved = (100, 105), (500, 490), (100, 500)
    samples = {
        "a": {8: [sample(1, near), sample(5, far), sample(9, far)]},
        "b": {8: [sample(2, near), sample(2, near), sample(7, moved)]},
    }
    assert regimes.assign(samples) == [(100, 105), (490, 500)]
    chosen, same = regimes.choose(samples, [8])[8]
    assert same
    assert {name: [sample.seconds[1] for sample in samples] for name, samples in chosen.items()} == {
        "a": [1],
        "b": [2, 2],
    }


def test_without_a_common_distance_all_samples_are_pooled_and_that_is_said():
    samples = {"a": {8: [sample(1, (100, 100))]}, "b": {8: [sample(2, (500, 500))]}}
    regimes.assign(samples)
    chosen, same = regimes.choose(samples, [8])[8]
    assert not same and [len(samples) for samples in chosen.values()] == [1, 1]


def test_a_machine_that_is_not_probed_has_one_distance():
    samples = {"a": {8: [sample(1), sample(1)]}, "b": {8: [sample(2)]}}
    assert regimes.assign(samples) == []
    chosen, same = regimes.choose(samples, [8])[8]
    assert same and [len(samples) for samples in chosen.values()] == [2, 1]


def of(median: float, nbytes: int = 1 << 20) -> Figures:
    return Figures.of([sample(median)], nbytes, 1.0)


FIGURES = {
    "ddl": {8: of(2e-6), 1 << 20: of(1e-4)},
    "mpich": {8: of(1e-6), 1 << 20: of(4e-4)},
    "gloo": {8: of(9e-6), 1 << 20: of(3e-4)},
    "limit": {8: of(1e-6), 1 << 20: of(9e-5)},
}


def ratios() -> table.Ratios:
    return table.ratios(FIGURES, "ddl", ["mpich", "gloo"], [8, 1 << 20])


def test_ratios_are_to_the_best_peer_and_the_limit():
    small, large = ratios()[8], ratios()[1 << 20]
    assert (small["best_peer"], large["best_peer"]) == ("mpich", "gloo")
    assert small["peer_over_subject"] == pytest.approx(0.5) and large["peer_over_subject"] == pytest.approx(3)
    assert large["of_limit"] == pytest.approx(0.9)


def test_the_table_shows_medians_and_ratios():
    text = table.comparison(FIGURES, "ddl", ratios(), mixed=[8])
    head, small, large = text.splitlines()
    assert head.split()[:5] == ["size", "ddl", "mpich", "gloo", "limit"]
    assert "best peer / ddl" in head and "ddl of limit" in head
    assert small.split() == "8 B* 2.00 µs 1.00 µs 9.00 µs 1.00 µs 0.50 x (mpich) 50 %".split()
    assert large.split() == "1 MiB 100 µs 400 µs 300 µs 90.0 µs 3.00 x (gloo) 90 %".split()
    assert len({len(line) for line in (head, small, large)}) == 1, "columns are aligned"


def test_the_details_show_everything_of_one():
    lines = details(FIGURES["ddl"]).splitlines()
    assert lines[0].split() == "size calls min median p99 alg GB/s bus GB/s CPU s/GB".split()
    assert lines[2].split()[:6] == "1 MiB 3 50.0 µs 100".split()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.234e-6, "1.23 µs"), (45.64e-6, "45.6 µs"), (2e-3, "2.00 ms"), (3.5, "3.50 s"), (0.5, "500 ms")],
)
def test_durations_are_readable(seconds: float, text: str):
    assert duration(seconds, 3) == text


@pytest.mark.parametrize(
    ("floor", "limit_floor", "status", "said"),
    [
        (None, None, 0, ""),
        (0.5, None, 0, ""),
        (1.0, None, 1, "8 B: mpich / ddl is 0.50, below 1"),
        (None, 0.85, 0, ""),  # 8 B is far below the limit, but small sizes do not count
        (None, 0.95, 1, "1 MiB: ddl reaches 0.90 of the limit, below 0.95"),
    ],
)
def test_floors(floor: Any, limit_floor: Any, status: int, said: str, capsys: pytest.CaptureFixture[str]):
    arguments = argparse.Namespace(floor=floor, limit_floor=limit_floor, subject="ddl")
    assert collectives._floors(arguments, ratios()) == status
    err = capsys.readouterr().err
    assert said in err and bool(err) == bool(said)
