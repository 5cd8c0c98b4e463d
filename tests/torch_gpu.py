"""For tests of ``ddl_torch`` on a GPU: ranks whose tensors are on the fake device of torch."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator

import torch
from device.fake_cuda import Fake
from device.fake_torch import install

import ddl


@contextlib.contextmanager
def fake_gpu(*, objects: bool = False) -> Iterator[Fake]:
    """Have ``torch.device("fake", 0)``, which ``ddl_torch`` takes for a GPU; in the end the ledger has not objected.

    ``objects``: it has, which is what a test of the test wants.
    """
    from ddl_torch import _streams

    install()
    _streams.GPU_TYPES.add("fake")
    fake = Fake(reset=False)
    try:
        yield fake
        torch.fake.synchronize()
        assert objects == (fake.violations != []), fake.violations
    finally:
        ddl.shutdown()


def environment(**options: Any) -> Dict[str, str]:
    """Return the variables of a job whose ranks have the fake driver."""
    return Fake.environment(**options)


def on_gpu(*shape: int, value: float = 1.0, dtype: Any = torch.float32) -> torch.Tensor:
    """Return a tensor whose values are still on their way."""
    return torch.full(shape, value, dtype=dtype, device="fake")
