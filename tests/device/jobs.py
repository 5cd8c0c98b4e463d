"""Jobs whose ranks have a GPU of the fake driver: what they start with, and what must hold when they end."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List

import numpy as np
from device.fake_cuda import DeviceArray, Fake

import ddl


@contextlib.contextmanager
def gpu() -> Iterator[Fake]:
    """Give the rank the fake that its DDL uses. In the end the ledger must have objected to nothing."""
    fake = Fake(reset=False)
    try:
        yield fake
        assert fake.violations == []
    finally:
        ddl.shutdown()


def array_of(fake: Fake, values: Any, **options: Any) -> DeviceArray:
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


def same_on_all_ranks(answers: List[Any]) -> bool:
    """Return whether all ranks have answered the same."""
    return all(answer == answers[0] for answer in answers)
