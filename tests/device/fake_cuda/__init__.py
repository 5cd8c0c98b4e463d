"""A driver of GPUs that needs no GPU: a libcuda.so.1 whose every queue, wait and copy a test can see and steer.

``library()`` compiles it; DDL loads it by ``DDL_CUDA_LIBRARY``. ``Fake`` is the test's hand on it: it calls the driver
as a framework would, decides what runs when, and reads the ledger, which objects to two accesses that nothing orders.
``DeviceArray`` is an array in its memory, with the two protocols by which frameworks hand arrays over.
"""

from __future__ import annotations

from device.fake_cuda.array import DeviceArray
from device.fake_cuda.build import library
from device.fake_cuda.entries import ENTRIES, DriverError
from device.fake_cuda.fake import Fake
from device.fake_cuda.host import HostMemory

__all__ = ["ENTRIES", "DeviceArray", "DriverError", "Fake", "HostMemory", "library"]
