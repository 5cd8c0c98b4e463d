"""Suggests a known name for an unknown one, for the ends of errors and warnings."""

from __future__ import annotations

from typing import Iterable, Optional

__all__ = ["did_you_mean", "nearest", "no_attribute"]


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> Optional[str]:
    """Return the name of ``known`` that is most similar to ``word``, or None if none is similar enough.

    ``likeness``: the least similarity, from 0 to 1. Upper and lower case are equal, and so are underscores and dashes;
    dashes in front of an option do not count.
    """
    import difflib  # here, because only errors need it

    names = {_plain(name): name for name in known}
    close = difflib.get_close_matches(_plain(word), names, n=1, cutoff=likeness)
    return names[close[0]] if close else None


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'allreduce'?)`` with the name of ``known`` nearest to ``word``; "" if none is similar."""
    name = nearest(word, known)
    return "" if name is None else f" (did you mean {name!r}?)"


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error of ``module``'s ``__getattr__`` for an unknown ``name``; ``known``: its public names."""
    hint = "" if name.startswith("_") else did_you_mean(name, known)  # programs use private names, not people
    error = AttributeError(f"module {module!r} has no attribute {name!r}{hint}")
    error.name, error.obj = None, None  # else Python would add its own suggestion
    return error
