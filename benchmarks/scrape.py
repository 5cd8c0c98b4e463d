"""``python -m benchmarks scrape``: the processor time that ``ddlrun --metrics`` takes, of jobs of any size.

There are no ranks: their samples are made up, and come as messages of hosts do, one per host each second.
"""

from __future__ import annotations

import argparse
import statistics
import time
import urllib.request
from typing import List, NamedTuple, Sequence

from ddl.launch.ask.listening import ListeningAddress
from ddl.launch.show.metrics_server import MetricsServer
from ddl.records.sample import CommunicatorSums, RankSample

__all__ = ["JobSize", "add_arguments", "measure", "run"]

_SECONDS, _SCRAPES = 9, 9  # of a job, and of its metrics


class JobSize(NamedTuple):
    """A job: each rank sends to so many others."""

    ranks: int
    hosts: int
    others: int


_SHAPES = (JobSize(2, 1, 1), JobSize(64, 8, 12), JobSize(512, 64, 18), JobSize(512, 64, 511))


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add its options."""
    parser.add_argument(
        "--shape", metavar="RANKS,HOSTS,OTHERS", help="measure this job only; each rank sends to so many others"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print a row of docs/metrics.md for each job; return the exit status."""
    shapes = _SHAPES if arguments.shape is None else (JobSize(*map(int, arguments.shape.split(","))),)
    print("| ranks | hosts | others | each second | a scrape | series | size |\n|---|---|---|---|---|---|---|")
    for shape in shapes:
        print(measure(shape), flush=True)
    return 0


def measure(shape: JobSize) -> str:
    """Return the row about a job; medians of processor time, that of the reader included."""
    server = MetricsServer(ListeningAddress("127.0.0.1", 0))
    server.start()
    taking, scraping = [], []
    try:
        for second in range(1, _SECONDS + 1):
            hosts = [_samples(shape, host, second) for host in range(shape.hosts)]
            begin = time.process_time()
            for samples in hosts:
                server.take(samples, shape.ranks, {})
            taking.append(time.process_time() - begin)
        for _ in range(_SCRAPES):
            begin = time.process_time()
            with urllib.request.urlopen(server.url, timeout=60) as answer:
                text = answer.read()
            scraping.append(time.process_time() - begin)
    finally:
        server.close()
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    times = [f"{_two_digits(1e3 * statistics.median(seconds))} ms" for seconds in (taking, scraping)]
    cells = [*map(str, shape), *times, f"{series:,}", f"{len(text) / 1024:.0f} KiB"]
    return f"| {' | '.join(cells)} |"


def _two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):g}"


def _samples(shape: JobSize, host: int, second: int) -> List[RankSample]:
    each = shape.ranks // shape.hosts
    return [_sample(shape, host, number, second) for number in range(host * each, (host + 1) * each)]


def _sample(shape: JobSize, host: int, number: int, second: int) -> RankSample:
    others = [(number + distance) % shape.ranks for distance in range(1, shape.others + 1)]
    sent = tuple((other, second, 1000 * second) for other in others)
    world = CommunicatorSums(0, second, 0.1 * second, 0.05 * second, sent)
    return RankSample(number, number, f"node{host}", 1000 + number, "runs", float(second), 0, communicators=(world,))
