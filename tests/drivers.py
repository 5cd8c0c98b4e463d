"""``--driver real``: tests of arrays on GPUs use the machine's GPU, and not the driver of our own making; a plugin.

Tests that steer the fake driver, or read its ledger, say so by ``@pytest.mark.fake_driver(why)`` and are skipped then.
Ranks, and what they start, know it by a variable.
"""

from __future__ import annotations

import os
from typing import Dict, List

import pytest

VARIABLE, LIBRARY = "TESTS_DRIVER", "TESTS_CUDA_LIBRARY"


def is_real() -> bool:
    """Return whether tests are to use a real GPU."""
    return os.environ.get(VARIABLE) == "real"


def variables() -> Dict[str, str]:
    """Return the variables by which a rank knows it, and by which its DDL finds another library than libcuda.so.1."""
    library = os.environ.get(LIBRARY)
    return {VARIABLE: os.environ[VARIABLE], **({"DDL_CUDA_LIBRARY": library, LIBRARY: library} if library else {})}


def device() -> str:
    """Return where torch's tensors of tests in ``tests/gpu`` are: "cuda", or "cpu" where there is no GPU to be used."""
    return "cuda" if is_real() and not os.environ.get(LIBRARY) else "cpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    choices = ("fake", "real")
    parser.addoption("--driver", choices=choices, default="fake", help="of arrays on GPUs: the tests' own, or a GPU's")
    parser.addoption("--cuda-library", default="", help="instead of libcuda.so.1, with --driver real: a rehearsal")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[VARIABLE] = config.getoption("--driver")
    os.environ[LIBRARY] = config.getoption("--cuda-library")


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    if not is_real():
        return
    for item in items:
        marker = item.get_closest_marker("fake_driver")
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=f"only the fake driver can do this: {marker.args[0]}"))
