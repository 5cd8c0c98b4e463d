"""``ddl dump``: what the ranks on this host did last, read out of their memory.

``command.py`` finds and reads them (with ``ddl/records``), ``report.py`` says it for people.
"""
