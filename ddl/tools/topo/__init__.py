"""``ddl topo``: hosts, ranks, who shares memory and what each link carries, as text and as a drawing.

The facts are those of ``ddl doctor``. ``tree.py`` prints them, ``drawing.py`` draws, with ``ddl/plan/svg.py``
as its pen.
"""
