"""Compiles the fake NCCL on first use, as the fake driver is."""

from __future__ import annotations

import functools
from pathlib import Path

from device.fake_cuda.build import compiled

HERE = Path(__file__).resolve().parent


@functools.cache
def library() -> Path:
    """Return the path of the fake's libnccl.so.2, compiled now if its sources have changed."""
    return compiled(HERE, "libnccl.so.2", includes=[HERE.parent / "fake_cuda" / "launch.h"])
