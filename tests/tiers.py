"""Two tiers of tests: ``--fast`` runs those that are not marked ``slow`` (``make test``), else all run; a plugin.

The fast tier is one that people wait for. So a test that takes longer than ``LIMIT`` fails, unless it is marked
``slow``. Seconds are those of a machine like ours with nothing else to do. After a test that took longer, a loop of a
known length is timed, and the processes that want a core are counted: where the loop takes three times as long, or
three processes want each core, the test may take three times as long, too. Where all tests are run nobody waits; there
a test fails at ``LENIENT`` times the limit only. With a real GPU (``--driver real``) tests do more, and have no limit.
"""

from __future__ import annotations

import os
import time
from typing import Iterator, List

import drivers
import pytest
import ranks

LIMIT = 5.0  #: seconds of a test that is not slow, without its fixtures
LENIENT = 3.0
_LOOPS, _LOOP_SECONDS = 2_000_000, 0.045  #: where the marks were given (CPython 3.11)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="run tests that are not marked slow")


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    if config.option.fast:
        config.hook.pytest_deselected(items=[item for item in items if is_slow(item)])
        items[:] = [item for item in items if not is_slow(item)]


def slowness() -> float:
    """Return how much slower a loop is than on our machine, or how many processes want each core; at least 1."""
    begin = time.perf_counter()
    for _ in range(_LOOPS):
        pass
    loop = (time.perf_counter() - begin) / _LOOP_SECONDS
    return max(1.0, loop, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Load what a test's ranks need before its seconds are counted: the first one of a framework is slow to come."""
    if item.get_closest_marker("processes") is not None:
        ranks.prepare(item.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield
    timed = report.when == "call" and report.passed and not is_slow(item) and not drivers.is_real()
    if timed and report.duration > LIMIT:
        limit = LIMIT * slowness() * (1 if item.config.option.fast else LENIENT)
        if report.duration > limit:
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid} took {report.duration:.1f} s, and {limit:.1f} s are what a test of the fast tier may "
                "take on this machine now. Make it faster, or mark it with @pytest.mark.slow"
            )
    return report
