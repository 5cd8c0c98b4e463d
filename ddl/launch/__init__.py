"""``ddlrun``: start a program as N ranks, watch over them, and end them all when one fails.

It imports only the standard library and DDL's plain-data modules, so it starts in milliseconds. Rooms, from the bottom
up: ask (what was asked for), agent (starts and watches the ranks of a host), launchers (reach other hosts), show,
dashboard and timeline (what people see of the job), job (runs all of it). cli.py is the way in; function/ is
``ddl.run``.
"""

from __future__ import annotations
