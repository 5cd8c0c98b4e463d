"""``ddl doctor``: does this cluster have what a job needs? Explained in docs/doctor.md.

``survey.py`` starts ranks on the hosts as ddlrun would, each of them a ``probe.py``, which looks at its host
(``local.py``) and at the ways to the others (``link.py``, where a ``responder.py`` answers) and prints what it finds;
together that is ``Facts`` (``facts.py``). ``verdicts.py`` judges, ``command.py`` prints; ``ddl topo`` draws the same.
"""
