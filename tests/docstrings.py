"""Runs the examples of a docstring with names that a test gives them, and compares the results that they state."""

from __future__ import annotations

import doctest
from typing import Any, Dict, Optional


def run_examples(text: Optional[str], names: Dict[str, Any]) -> int:
    """Run the examples in ``text`` one after the other; return how many there were. ``names`` gets what they define.

    An example that states no result may have any, as in ``ddl.allreduce_(x)``.
    """
    examples = doctest.DocTestParser().get_examples(text or "")
    for example in examples:
        if example.want:
            got = repr(eval(example.source, names))
            assert got == example.want.strip(), f"{example.source.strip()} is {got}, not {example.want.strip()}"
        else:
            exec(example.source, names)
    return len(examples)
