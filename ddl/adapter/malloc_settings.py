"""Keeps glibc from giving the memory of every freed gradient back to the system.

Frameworks free the gradients of a step. By default glibc unmaps blocks of that size. In the next backward pass every
page is mapped again by a page fault, which takes longer than to copy the gradients. The settings are those of the whole
process: blocks up to 1 GiB come from the heap, and the heap keeps what is freed.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Dict, NamedTuple, Optional

from ddl.bootstrap.environ import Settings

__all__ = ["environ", "tune_allocator"]

_log = logging.getLogger("ddl")
_tuned: Optional[bool] = None  # None: not tried yet in this process


class _MalloptSetting(NamedTuple):
    """One of mallopt(3)."""

    parameter: int  #: its number in malloc.h
    variable: str  #: by which a process gets it at its start
    value: int  #: bytes


_SETTINGS = (
    _MalloptSetting(-3, "MALLOC_MMAP_THRESHOLD_", 1 << 30),
    _MalloptSetting(-1, "MALLOC_TRIM_THRESHOLD_", (1 << 31) - 1),
    _MalloptSetting(-2, "MALLOC_TOP_PAD_", 64 << 20),
)


def environ() -> Dict[str, str]:
    """Return variables that give the same settings to a process which does not use DDL: a peer in a benchmark."""
    return {setting.variable: str(setting.value) for setting in _SETTINGS}


def tune_allocator(wanted: Optional[bool] = None) -> bool:
    """Set glibc's allocator up for training on the CPU, once per process; return whether it is.

    ``wanted`` None: as DDL_TUNE_ALLOCATOR says (default 1). Does nothing where the C library is not glibc. Raises
    ``ConfigError`` if a variable of DDL's has a value that makes no sense.
    """
    global _tuned
    if not (Settings.from_environ().tune_allocator if wanted is None else wanted):
        return bool(_tuned)
    if _tuned is None:
        library = ctypes.CDLL(None)
        glibc = hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt")
        _tuned = glibc and all([library.mallopt(setting.parameter, setting.value) == 1 for setting in _SETTINGS])
        if _tuned:
            _log.info("glibc keeps freed memory from now on (mallopt); DDL_TUNE_ALLOCATOR=0 turns this off")
        else:
            _log.info("the allocator is not glibc's or refused the settings; it stays as it is")
    return _tuned
