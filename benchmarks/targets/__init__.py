"""``python -m benchmarks targets``: whether DDL reaches its targets. What each of them is: docs/targets.md.

``timed.py`` times all-reduces on clusters (targets a to e), ``cut.py`` cuts a rail (f), ``plans.py`` proves the plans
that ran (g), ``connections.py`` counts connections (h); ``bounds.py`` is the arithmetic, ``rows.py`` the table.
"""
