"""The store of a job: where its ranks leave what others ask for, and who is to blame when one fails.

Only the standard library and ``ddl.errors`` are imported here, because ``ddlrun`` must start in milliseconds.
"""

from __future__ import annotations
