"""Runs the tests of the native core under sanitizers: ``make sanitize``, or ``python tests/sanitize/run.py [NAME …]``.

NAME is thread, address or undefined; without any: all three. What follows ``--`` goes to pytest, and takes the place of
the selection where it names tests.

For each: builds (builds.py), proves with faults on purpose that reports arrive (canary.cc), runs ranks as threads of
one process where there is a data race to find (ranks_as_threads.cc), runs a selection of the tests (selection.txt),
and fails if a test failed or if any process, also a rank that is a child's child, has left a report.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import List, Optional

from builds import HERE, Build
from reports import Reports
from threads import run_ranks_as_threads

SANITIZERS = ("thread", "address", "undefined")
#: Sanitized code is slower; a single test gets this long, and the whole of one sanitizer's tests that long.
TEST_TIMEOUT_S = 240
ALL_TIMEOUT_S = 1500
#: Fewer operations than in the normal test run, for the same reason.
STRESS_OPERATIONS = "3000"


def selection(name: str) -> List[str]:
    """The tests to run under ``name``: the lines of selection.txt, less those that are for other sanitizers only."""
    lines = [line.split("#")[0].split() for line in (HERE / "selection.txt").read_text().splitlines()]
    return [words[0] for words in lines if words and (len(words) == 1 or name in words[1:])]


def check_canary(build: Build, reports: Reports) -> Optional[str]:
    """Return what is wrong if a fault on purpose is not reported; the report, if it came, is removed."""
    library = build.folder / "canary.so"
    build.compile(library, [HERE / "canary.cc"], [], "-shared", "-fPIC")
    code = f"import ctypes; ctypes.CDLL({str(library)!r}).ddl_canary_{build.name}(8)"
    # As a grandchild, and with what it says thrown away: this is how ranks of the tests run.
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], capture_output=True)"
    line = build.program(sys.executable, "-c", outer)
    subprocess.run(line, cwd=build.folder, env=build.environment(), check=False, timeout=120)
    return None if reports.take(build.name) else "a fault on purpose was not reported: nothing that follows would be"


def check_core(build: Build) -> Optional[str]:
    """Return what is wrong if Python would not load the core that was just built."""
    code = "import ddl._core; print(ddl._core.__file__)"
    line = build.program(sys.executable, "-c", code)
    ended = subprocess.run(line, cwd=build.folder, env=build.environment(), capture_output=True, text=True, check=False)
    path = Path(ended.stdout.strip() or "/")
    if ended.returncode != 0 or build.folder not in path.parents:
        return f"the core does not load, or another one does ({path}):\n{ended.stderr}"
    return None


def run_pytest(build: Build, arguments: List[str], only_failed: bool = False) -> int:
    line = [sys.executable, "-m", "pytest", "-q", "--color=no", "--durations=10"]
    settings = {"cache_dir": build.folder / "cache", "faulthandler_timeout": TEST_TIMEOUT_S - 5}
    line += [f"--timeout={TEST_TIMEOUT_S}", *(f"--override-ini={key}={value}" for key, value in settings.items())]
    line += ["--last-failed", "--last-failed-no-failures=none"] if only_failed else []
    env = {"STRESS_OPERATIONS": STRESS_OPERATIONS, **build.environment()}
    return subprocess.run(
        build.program(*line, *arguments), cwd=build.folder, env=env, check=False, timeout=ALL_TIMEOUT_S
    ).returncode


def run_tests(build: Build, reports: Reports, arguments: List[str], notes: List[str]) -> Optional[str]:
    """Return what is wrong if tests fail. Adds to ``notes`` what was done about deaths of libtsan itself."""
    named = any((build.folder / argument.split("::")[0]).exists() for argument in arguments)
    tests = arguments if named else [*selection(build.name), *arguments]
    status = run_pytest(build, tests)
    died = reports.set_aside_runtime_deaths()
    if status == 1 and died:
        # A bug of the runtime, not of what is tested: it may not decide, nor may it hide what is behind it.
        notes.append(f"libtsan itself died {died} times; what had failed was repeated once")
        status = run_pytest(build, tests, only_failed=True)
        again = reports.set_aside_runtime_deaths()
        notes += [f"and it died again {again} times"] if again else []
    return None if status == 0 else f"pytest ended with status {status}"


def run_one(name: str, arguments: List[str]) -> bool:
    """Build and test under one sanitizer; print its summary line and return whether all was well."""
    started = time.monotonic()
    build = Build(name)
    print(f"==> {name}: building", flush=True)
    build.make()
    built = time.monotonic()
    reports = Reports(build.reports)
    notes: List[str] = []
    wrong = check_canary(build, reports) or check_core(build)
    if wrong is None and name == "thread" and not arguments:
        print(f"==> {name}: ranks as threads of one process", flush=True)
        wrong = run_ranks_as_threads(build)
    if wrong is None or "ranks as threads" in wrong:
        print(f"==> {name}: tests", flush=True)
        wrong = "; ".join(filter(None, [wrong, run_tests(build, reports, arguments, notes)])) or None
    reports.show()
    faults = [wrong] if wrong else []
    faults += [f"{reports.count()} reports in {reports.folder}"] if reports.count() else []
    verdict = f"FAILED: {'; '.join(faults)}" if faults else "passed"
    spent = f"{built - started:.0f} s to build, {time.monotonic() - built:.0f} s to run"
    print(f"==> sanitize {name}: {'; '.join([verdict, *notes])} ({spent})", flush=True)
    return not faults


def main() -> int:
    line = sys.argv[1:]
    arguments = line[line.index("--") + 1 :] if "--" in line else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="thread, address or undefined; default: all")
    names = parser.parse_args(line[: line.index("--")] if "--" in line else line).names or list(SANITIZERS)
    for name in names:
        if name not in SANITIZERS:
            parser.error(f"{name!r} is no sanitizer; there are {', '.join(SANITIZERS)}")
    # One after the other, and all of them even if the first finds something.
    results = [run_one(name, arguments) for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
