"""``ddl plan``: what a collective would do on a given layout of ranks, counted and drawn, without running anything.

``command.py`` reads the options and has the plan made and proved, ``figures.py`` counts, ``report.py`` prints; the
drawing is ``ddl/plan/draw.py``'s. Explained in docs/algorithms.md.
"""
