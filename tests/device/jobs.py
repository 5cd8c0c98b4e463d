"""Jobs whose ranks have a GPU of the fake driver: what they start with, and what must hold when they end."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, Iterator, List

import drivers
import numpy as np
import pytest
from device.fake_cuda import DeviceArray, Fake
from device.fake_cuda.calls import DriverCalls
from device.real_driver import RealDriver

import ddl

#: What waits for results: the host, or a stream.
WAITS = pytest.mark.parametrize("wait", ["host", "stream"])


def environment(**options: Any) -> Dict[str, str]:
    """Return the variables with which a rank's DDL uses the driver of the tests: a fake like this, or a GPU's.

    Of the options, a real driver has the queues of the hardware only, and 32 of them at most.
    """
    if not drivers.is_real():
        return Fake.environment(**options)
    queues = {"CUDA_DEVICE_MAX_CONNECTIONS": str(options["queues"] or 32)} if "queues" in options else {}
    return {**drivers.variables(), **queues}


def driver() -> Any:
    """Return the driver that this rank's DDL uses: a ``Fake``, or a ``RealDriver``."""
    return RealDriver() if drivers.is_real() else Fake(reset=False)


@contextlib.contextmanager
def gpu() -> Iterator[Any]:
    """Give the rank the driver that its DDL uses. In the end the fake's ledger must have objected to nothing."""
    fake = driver()
    try:
        yield fake
        assert fake.violations == [], fake.violations
    finally:
        ddl.shutdown()


def array_of(fake: DriverCalls, values: Any, **options: Any) -> DeviceArray:
    """Return an array on the GPU whose values are still on their way when this returns."""
    data = np.asarray(values)
    return DeviceArray(fake, data.shape, data.dtype, **options).set(data)


class Interface:
    """The same array without DLPack: by ``__cuda_array_interface__`` only."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.array.__cuda_array_interface__


def total(size: int) -> int:
    """Return the sum of 1, 2, …, size: what ranks with rank + 1 add up to."""
    return size * (size + 1) // 2


def wait_until_let_go(array: DeviceArray) -> None:
    """Return when DDL has let go what it has asked of this array, on all ranks. Each call looks whether it can do so.

    Collective: all ranks make as many calls.
    """
    deadline = time.monotonic() + 100
    while ddl.allreduce(float(array.released < len(array.requested)), op="max") > 0:
        assert time.monotonic() < deadline, f"{array.released} of {len(array.requested)} are let go"


def same_on_all_ranks(answers: List[Any]) -> bool:
    """Return whether all ranks have answered the same."""
    return all(answer == answers[0] for answer in answers)
