"""Finds misspelt environment variables: they look like DDL's, but have no effect."""

from __future__ import annotations

import dataclasses
from typing import List, Mapping

from ddl.bootstrap.environ import Identity, Settings
from ddl.text.spelling import nearest

__all__ = ["misspelt"]

_PREFIX = "DDL_"
_OF_THE_BUILD = ("DDL_CMAKE_ARGS", "DDL_PYTHON_INCLUDE", "DDL_WHEEL_TAG")  #: setup.py reads them
_LIKENESS = 0.75  # TIMEOUTT and TIME_OUT are like TIMEOUT, but HOST is not like HOST_ID: it may well be the script's


def misspelt(environ: Mapping[str, str]) -> List[str]:
    """Return a sentence about each variable in ``environ`` whose name is next to one of DDL's."""
    names = [field.metadata["variable"] for field in dataclasses.fields(Settings)]
    known = {name[len(_PREFIX) :] for name in (*names, *Identity(secret=b"").to_environ(), *_OF_THE_BUILD)}
    texts = []
    for name in sorted(environ):
        own = name[len(_PREFIX) :]
        if name.startswith(_PREFIX) and own not in known:
            meant = nearest(own, known, _LIKENESS)
            if meant is not None:
                texts.append(f"{name} is no variable of DDL and has no effect (did you mean {_PREFIX}{meant}?)")
    return texts
