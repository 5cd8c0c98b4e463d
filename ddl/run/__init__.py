"""``ddlrun``: start a program as N ranks, watch over them, and end them all when one fails.

It imports only the standard library and DDL's plain-data modules, so it starts in milliseconds. Read in this order:
cli (what was asked for) -> environ (what each rank is told) -> agent (starts and supervises) -> output, processes,
failures (its tools).
"""

from __future__ import annotations
