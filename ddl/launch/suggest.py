"""``did you mean``: what somebody may have wanted who misspelt an option or a name."""

from __future__ import annotations

from typing import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean --timeout?``, with the one of ``known`` that is most like ``word``; "" if none is."""
    import difflib  # milliseconds that only a mistake costs

    by_letters = {name.lstrip("-").replace("_", "-"): name for name in known}
    alike = difflib.get_close_matches(word.lstrip("-").replace("_", "-"), by_letters, n=1, cutoff=0.7)
    return f"; did you mean {by_letters[alike[0]]}?" if alike else ""
