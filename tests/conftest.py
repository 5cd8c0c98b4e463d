"""What every test gets: numpy loud about surprises, reproducible hypothesis, and no job's environment leaking in.

A test that hangs is ended after the time that stands in pyproject.toml, and all stacks are printed. What a test waits
for ends some time before, so that it says what hung. Neither bounds how long something may take: a test that does,
says so.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import signal
from typing import Iterator

import pytest

# A shell without job control starts background jobs with Ctrl-C ignored, and every rank would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):  # as under nohup
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# A torch for CUDA brings triton, which crashes if it is loaded after TensorFlow: both have an LLVM of their own.
# Test modules import both, TensorFlow first. (A torch for CPUs has no triton.)
with contextlib.suppress(ModuleNotFoundError):
    importlib.import_module("triton")

# A machine may be busy: examples that take or come long are no failure, pytest-timeout bounds the whole test.
# (A machine with a GPU may have no hypothesis; the tests that `make gpu` runs there do without.)
with contextlib.suppress(ModuleNotFoundError):
    hypothesis = importlib.import_module("hypothesis")
    slow = hypothesis.HealthCheck.too_slow
    hypothesis.settings.register_profile("ddl", deadline=None, derandomize=True, suppress_health_check=[slow])
    hypothesis.settings.load_profile("ddl")


_OF_PYTEST = "PYTEST_CURRENT_TEST"

pytest_plugins = ["clusters", "drivers", "outcomes", "tiers", "turns"]

# A third of the time of tests that make many objects went to collections that looked through pytest's items and the
# frameworks that were imported, again and again. What is there when tests begin stays, and nobody looks at it any more.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def _installed(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None  # a folder of tests is none


#: Frameworks that need an interpreter of their own, by which `make test` runs their tests.
collect_ignore = [framework for framework in ("caffe", "chainer", "theano") if not _installed(framework)]


@pytest.fixture(scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for what the programs that tests start would keep in the user's home."""
    return str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_by_engines() -> Iterator[None]:
    """Undo what engines do to this process: Dask sets variables for its workers, Ray Tune handles Ctrl-C for good."""
    variables = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        if handler is not None:  # None: one that is not Python's
            signal.signal(number, handler)
    for name in os.environ.keys() - variables.keys() - {_OF_PYTEST}:
        del os.environ[name]
    variables.pop(_OF_PYTEST, None)
    os.environ.update(variables)


@pytest.fixture(autouse=True)
def no_job_in_environment(monkeypatch: pytest.MonkeyPatch, state_home: str) -> Iterator[None]:
    """Hide the variables of an outer launcher, so that a test's processes see only what the test gives them."""
    launchers = ("DDL_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
    for variable in list(os.environ):
        if variable.startswith(launchers):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_STATE_HOME", state_home)
    monkeypatch.setenv("DDL_TUNED", "off")  # a table that the user measured on this machine would change what runs
    yield
