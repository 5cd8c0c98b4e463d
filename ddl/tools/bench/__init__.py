"""``ddl bench``: times DDL's collectives on some hosts. What the columns mean: docs/benchmarks.md.

``command.py`` starts the job and ``worker.py`` is its program. ``loop.py`` checks and times one collective of a
library (``library.py``) on known values (``values.py``); ``figures.py`` and ``report.py`` say what it comes to.
"""
