"""``ddlrun``: start a program as N ranks, watch over them, and end them all when one fails.

It imports only the standard library and DDL's plain-data modules, so it starts in milliseconds. Read in this order:
cli (what was asked for) -> environ (what each rank is told) -> agent (starts and supervises) -> output, processes,
failures (its tools). ``ddl.run(function, np=2)`` calls a function on ranks: function.py.

``ddl.run`` is both that function and this package: the function takes the package's place, and has its modules as
attributes. So help and signature are the function's; ``import ddl.run.cli`` works as with any package.
"""

from __future__ import annotations

import sys

from ddl.run.function import run

_OF_PACKAGES = ("__file__", "__loader__", "__name__", "__package__", "__path__", "__spec__")
for _name, _value in list(globals().items()):
    if _name in _OF_PACKAGES or getattr(_value, "__package__", "") == __name__:  # modules that are imported already
        setattr(run, _name, _value)
# Whoever first imports a part of this package has import bind ``ddl.run`` to what stands here afterwards. Were that the
# package, ``import ddl.run.cli`` would put it in the function's place. (A package that can be called, by a class of its
# own, would show the help and signature of that class.)
sys.modules[__name__] = run  # type: ignore[assignment]
