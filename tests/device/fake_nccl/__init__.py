"""An NCCL that needs no GPU: a libnccl.so.2 whose operations are commands on the streams of the fake driver.

The ranks are processes of one machine, each with its own fake driver. ``library()`` compiles it; DDL loads it by
``DDL_NCCL_LIBRARY``, and ``environment()`` has all variables that a rank needs. ``Nccl`` calls it as a framework
would. What the real library would answer by a hang, by garbage or by luck is a violation in the fake driver's ledger:

* ranks that launch a communicator's operations in another order, or with other counts, types or operators;
* communicators of one device that were launched in another order on another rank, or by two threads at once;
* an operation that another rank does not join in time;
* a call with wrong arguments, too early, or after the end.
"""

from __future__ import annotations

from device.fake_nccl.build import library
from device.fake_nccl.nccl import Nccl, NcclError, environment

__all__ = ["Nccl", "NcclError", "environment", "library"]
