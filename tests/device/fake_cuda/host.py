"""Host memory in pages of its own, which the driver has registered: what copies begin and end in."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from device.fake_cuda.calls import DriverCalls


class HostMemory:
    """``bytes`` bytes at ``address``; ``array`` is a view of them, of bytes.

    The pages stay mapped as long as this object lives, and until the fake's next reset at least.
    """

    def __init__(self, fake: DriverCalls, bytes: int, *, register: bool = True) -> None:
        self.bytes = bytes
        self._pages = mmap.mmap(-1, max(bytes, 1))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self.array = np.frombuffer(self._pages, np.uint8, bytes)
        fake.keep(self)
        if register:
            fake.register(self.address, max(bytes, 1))

    def view(self, dtype: np.typing.DTypeLike) -> np.ndarray:
        """Return the memory as an array of that type."""
        return self.array.view(dtype)
