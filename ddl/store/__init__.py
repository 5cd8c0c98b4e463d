"""The store of a job: keys and values that the ranks share, and the verdict which rank has failed.

Only the standard library and ``ddl.errors`` are imported here, because ``ddlrun`` must start in milliseconds.
"""

from __future__ import annotations
