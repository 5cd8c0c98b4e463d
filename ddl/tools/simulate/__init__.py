"""``ddl simulate``: how long a training step or an all-reduce would take on a machine that is described, not there.

``description.py`` reads the machine from TOML, ``scenario.py`` lays out and simulates what was asked for, ``report.py``
prints it and ``timeline.py`` draws it. The model itself is ``ddl.tuning``.
"""
