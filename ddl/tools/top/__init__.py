"""``ddl top``: what the ranks of a job do now.

``command.py`` asks a ddlrun, and ``table.py`` makes lines of what it says.
"""
