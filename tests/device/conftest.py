"""For the tests in this folder: the fake driver is compiled before the first of them."""

from __future__ import annotations

from typing import Callable, Iterator

import drivers
import pytest
from device.fake_checks import OLDER
from device.fake_cuda import Fake, library


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile the libraries outside of the tests, which are to be quick."""
    if not drivers.is_real():
        library()
        library(*OLDER)


@pytest.fixture
def new() -> Iterator[Callable[..., Fake]]:
    """Return ``Fake``; nothing of it is left afterwards."""
    yield Fake
    Fake(start=False).reset()
