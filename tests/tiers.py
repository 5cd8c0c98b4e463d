"""Two tiers of tests: ``--fast`` runs those that are not marked ``slow`` (``make test``), else all run; a plugin.

Of a test that is marked ``few(3)`` the fast tier runs three of its cases, always the same ones. They are drawn at
random, as every n-th case of a product of parameters would have the same value of one of them.

The fast tier is one that people wait for, so a test of it should take no more than ``LIMIT`` seconds. No test fails for
having taken longer: machines differ, and so does what else they do. The ten that took longest are named at the end, and
whoever reads that makes them faster, or marks them.
"""

from __future__ import annotations

import random
from typing import Dict, List, Set, Tuple

import pytest
import ranks

LIMIT = 5.0  #: seconds of a test that is not slow, without its fixtures, on two cores with nothing else to do
NAMED = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="run tests that are not marked slow")


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    if config.option.fast:
        left_out = too_many(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out or is_slow(item)])
        items[:] = [item for item in items if item not in left_out and not is_slow(item)]


def too_many(items: List[pytest.Item]) -> Set[pytest.Item]:
    """Return the cases of tests marked ``few`` that the fast tier leaves out; those marked ``slow`` do not count."""
    cases: Dict[str, List[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") is not None and not is_slow(item):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: Set[pytest.Item] = set()
    for test, group in cases.items():
        (count,) = next(group[0].iter_markers("few")).args
        left_out.update(random.Random(test).sample(group, max(0, len(group) - count)))
    return left_out


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Load what a test's ranks need before its seconds are counted: the first one of a framework is slow to come."""
    if item.get_closest_marker("processes") is not None:
        ranks.prepare(item.path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that took too long for the fast tier."""
    took: List[Tuple[float, str]] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call" and report.duration > LIMIT and "slow" not in report.keywords:
                took.append((report.duration, report.nodeid))
    if took:
        terminalreporter.write_line(
            f"over {LIMIT:.0f} s, which is long for `make test`, took {len(took)} that are not marked slow:"
        )
    for seconds, test in sorted(took, reverse=True)[:NAMED]:
        terminalreporter.write_line(f"  {seconds:5.1f} s  {test}")
