"""Keeps glibc from giving the memory of every freed gradient back to the system.

Gradients are copied into their bucket and then freed. By default glibc unmaps blocks of that size, and the next
backward pass faults every page in again, which costs far more than the copy. The settings are those of the whole
process: blocks up to 1 GiB come from the heap, and the heap keeps what is freed.
"""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Optional

from ddl import ConfigError

__all__ = ["tune_allocator"]

VARIABLE = "DDL_TORCH_TUNE_ALLOCATOR"
_log = logging.getLogger("ddl.torch")
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_SETTINGS = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, (1 << 31) - 1), (_M_TOP_PAD, 64 << 20))
_tuned: Optional[bool] = None  # None: not tried yet in this process


def _wanted() -> bool:
    value = os.environ.get(VARIABLE, "1")
    if value not in ("0", "1"):
        raise ConfigError(f"{VARIABLE}={value!r} is neither 0 nor 1; 1 (the default) lets DDL tune glibc's allocator")
    return value == "1"


def tune_allocator(wanted: Optional[bool] = None) -> bool:
    """Set glibc's allocator up for training on the CPU, once per process; return whether it is.

    ``wanted`` None: as DDL_TORCH_TUNE_ALLOCATOR says (default 1). Does nothing where the C library is not glibc.
    """
    global _tuned
    if not (_wanted() if wanted is None else wanted):
        return bool(_tuned)
    if _tuned is None:
        library = ctypes.CDLL(None)
        glibc = hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt")
        _tuned = glibc and all([library.mallopt(name, value) == 1 for name, value in _SETTINGS])
        if _tuned:
            _log.info("glibc keeps freed memory from now on (mallopt); %s=0 turns this off", VARIABLE)
        else:
            _log.info("the allocator is not glibc's or refused the settings; it stays as it is")
    return _tuned
