"""Which name was meant by one that nobody knows: errors and warnings end with it."""

from __future__ import annotations

from typing import Iterable, Optional

__all__ = ["did_you_mean", "nearest", "no_attribute"]


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> Optional[str]:
    """Return the name of ``known`` that is most like ``word``, from 0 to 1; None if none is as like as that.

    Large and small letters count alike, and so do underscores and dashes; dashes in front of an option do not count.
    """
    import difflib  # here, as it is needed only where something went wrong

    names = {_plain(name): name for name in known}
    close = difflib.get_close_matches(_plain(word), names, n=1, cutoff=likeness)
    return names[close[0]] if close else None


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'allreduce'?)`` with the name of ``known`` next to ``word``; "" if none is close."""
    name = nearest(word, known)
    return "" if name is None else f" (did you mean {name!r}?)"


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return what ``module``'s ``__getattr__`` raises for a ``name`` that is not there; ``known``: its public names."""
    hint = "" if name.startswith("_") else did_you_mean(name, known)  # programs ask for these, not people
    error = AttributeError(f"module {module!r} has no attribute {name!r}{hint}")
    error.name, error.obj = None, None  # Python would add a guess of its own
    return error
