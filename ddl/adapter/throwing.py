"""``throwing_collectives``: C functions that call two others (by ctypes, of Python's) and throw where these fail.

For engines in C++ that take collectives as plain functions: an exception of Python's cannot pass through them, one of
C++ can. See csrc/python/bind_throwing.cc.
"""

from __future__ import annotations

from ddl._core import throwing_collectives

__all__ = ["throwing_collectives"]
