"""What ``ddl bench`` can time: names only, so that its options are known without numpy."""

from __future__ import annotations

__all__ = ["COLLECTIVES", "DTYPES"]

COLLECTIVES = ("allreduce", "reducescatter", "allgather", "broadcast", "alltoall")
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}  #: bytes of an element
