"""What the tests of the fake driver share: seeds, modes, and checks."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import pytest
from device.fake_cuda import DriverError, Fake

SEEDS = range(4)
MODES = ("steps", "threads")
OLDER = ("cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2")  #: an older driver lacks these


def fails(code: int, call: Callable[..., object], *arguments: Any) -> None:
    with pytest.raises(DriverError) as raised:
        call(*arguments)
    assert raised.value.code == code


def flags(fake: Fake, count: int) -> Tuple[int, Callable[[], List[int]]]:
    """Return the address of ``count`` words, and a function that reads them."""
    memory = fake.host(4 * count)
    return memory.address, lambda: memory.view("uint32").tolist()
