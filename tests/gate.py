"""Runs a suite of tests as ``make test`` does, and runs those that failed once more, by themselves: ``gate.py NAME …``.

What is behind NAME goes to pytest. A test that fails again fails the suite. One that passes is *unsteady*: its result
depends on what else the machine does. That is a defect of the test, or worse, so the last lines name it, but it does
not refuse a good change. More than ``MOST`` unsteady tests do: then something is wrong with all of them.

``gate.py --unsteady`` prints the unsteady tests of all suites since ``build/tests`` was made, and counts them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

FOLDER = Path("build", "tests")
MOST = 10
_SOME_FAILED, _NO_TESTS = 1, 5  #: of pytest's exit codes; the others say that not all tests were run


class Run(NamedTuple):
    """How pytest ended, which tests passed, and for those that failed the first line of the failure."""

    status: int
    passed: Sequence[str]
    failed: Dict[str, str]


def run_pytest(folder: Path, args: Sequence[str]) -> Run:
    """Run pytest; its cache, which knows what failed last, is in ``folder``."""
    outcomes = folder / "outcomes.json"
    outcomes.unlink(missing_ok=True)
    options = ["-o", f"cache_dir={(folder / 'cache').absolute()}", "--outcomes", str(outcomes)]
    status = subprocess.run([sys.executable, "-m", "pytest", *args, *options], check=False).returncode
    written = json.loads(outcomes.read_text()) if outcomes.exists() else {"passed": [], "failed": {}}
    return Run(status, written["passed"], written["failed"])


def run_suite(name: str, args: Sequence[str]) -> int:
    """Run the tests of a suite, and again what failed; return the exit code of this program."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    first = run_pytest(folder, args)
    if first.status != _SOME_FAILED or not first.failed:
        return first.status
    if len(first.failed) > MOST:
        say(f"{len(first.failed)} tests of {name} failed: too many to run them again")
        return _SOME_FAILED
    say(f"{len(first.failed)} of {name} failed; now they run by themselves")
    # pytest-xdist gives a test whose worker died to another one, and pytest forgets its failure if it passes there.
    (folder / "cache/v/cache/lastfailed").write_text(json.dumps(dict.fromkeys(first.failed, True)))
    # A worker of its own: if it dies, the test that it ran has failed, and the others still run.
    again = run_pytest(folder, [*args, "-n", "1", "--last-failed", "--last-failed-no-failures", "none"])
    failed = [test for test in first.failed if test not in again.passed]
    (folder / "unsteady").write_text("".join(lines_of(first, again)))
    for test in failed:
        say(f"FAILED AGAIN {test}: {again.failed.get(test, 'it was not run')}")
    if failed or again.status not in (0, _SOME_FAILED, _NO_TESTS):
        return _SOME_FAILED
    return say_unsteady()


def lines_of(first: Run, again: Run) -> List[str]:
    return [f"UNSTEADY {test}: {line}\n" for test, line in first.failed.items() if test in again.passed]


def say_unsteady() -> int:
    """Print the unsteady tests of all suites; return 1 if they are too many."""
    lines = [line for file in sorted(FOLDER.glob("*/unsteady")) for line in file.read_text().splitlines()]
    for line in lines:
        say(line)
    if len(lines) > MOST:
        say(f"{len(lines)} tests are unsteady: more than {MOST}")
    return _SOME_FAILED if len(lines) > MOST else 0


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(say_unsteady() if sys.argv[1:] == ["--unsteady"] else run_suite(sys.argv[1], sys.argv[2:]))
