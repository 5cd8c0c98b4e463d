"""Environment variables that look like one of DDL's, but are none: a setting that somebody believes to be made."""

from __future__ import annotations

import dataclasses
from typing import List, Mapping

from ddl.bootstrap.environ import Identity, Settings
from ddl.text.spelling import nearest

__all__ = ["misspelt"]

_PREFIX = "DDL_"
#: What is read elsewhere than in ``Settings`` and ``Identity``: by adapters, and by ddlrun for itself.
_ELSEWHERE = ("DDL_TUNE_ALLOCATOR", "DDL_TENSORFLOW_OP", "DDL_CMAKE_ARGS")
_LIKENESS = 0.75  # TIMEOUTT and TIME_OUT are like TIMEOUT, but HOST is not like HOST_ID: it may well be the script's


def misspelt(environ: Mapping[str, str]) -> List[str]:
    """Return a sentence about each variable in ``environ`` whose name is next to one of DDL's."""
    names = [field.metadata["variable"] for field in dataclasses.fields(Settings)]
    known = {name[len(_PREFIX) :] for name in (*names, *Identity(secret=b"").to_environ(), *_ELSEWHERE)}
    texts = []
    for name in sorted(environ):
        own = name[len(_PREFIX) :]
        if name.startswith(_PREFIX) and own not in known:
            meant = nearest(own, known, _LIKENESS)
            if meant is not None:
                texts.append(f"{name} is no variable of DDL and has no effect (did you mean {_PREFIX}{meant}?)")
    return texts
