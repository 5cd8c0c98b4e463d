"""For the tests in this folder: what those on a GPU need is compiled before the first of them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """Compile the fake driver and the fake device of torch outside of the tests, which are to be quick."""
    if request.module.__name__.rpartition(".")[2].startswith("test_gpu_"):
        from device import fake_cuda, fake_torch

        fake_cuda.library()
        fake_torch.library()
