"""``--outcomes FILE``: writes how each test ended, and the first line of its first failure, as JSON; a plugin.

``tests/gate.py`` reads it. With pytest-xdist the process that hands out the tests writes it; a test whose worker died
is one that failed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="write how each test ended")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.outcomes and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(config.option.outcomes).absolute()))


class Outcomes:
    """Collects the reports of a run. A test has passed if its call has, and none of its phases has failed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._passed: List[str] = []
        self._failed: Dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, first_line(report))
        elif report.when == "call" and report.passed:
            self._passed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = [test for test in self._passed if test not in self._failed]
        self._file.write_text(json.dumps({"passed": passed, "failed": self._failed}))


def first_line(report: pytest.TestReport) -> str:
    """Return what a failure says first: the error's message, or what pytest-xdist says of a worker that died."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr).strip()
    return text.splitlines()[0] if text else "no message"
