"""How the ranks of a job find each other: who am I (environ), the store (store, server), and who failed (verdict).

Only the standard library and ``ddl.errors`` are imported here, because ``ddlrun`` must start in milliseconds.
"""

from __future__ import annotations
