"""``ddlrun``: start a program as N ranks, watch over them, and end them all when one fails.

It imports only the standard library and DDL's plain-data modules, so it starts in milliseconds. Read in this order:
cli (what was asked for) -> rank_environ (what each rank is told) -> host_agent (starts and supervises) -> output,
processes, failures (its tools). ``ddl.run(function, np=2)`` calls a function on ranks: function.py.
"""

from __future__ import annotations
