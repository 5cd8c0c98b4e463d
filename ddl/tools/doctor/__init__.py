"""``ddl doctor``: does this cluster have what a job needs? Explained in docs/doctor.md.

``survey.py`` starts ranks on the hosts as ddlrun would. Each runs ``probe.py``, which looks at its host (``local.py``)
and at the links to the others (``link.py``; a ``responder.py`` answers there), and prints the results. Together they
are ``Facts`` (``facts.py``). ``verdicts.py`` judges them, ``command.py`` prints; ``ddl topo`` draws the same.
"""
