"""Lists of sizes on the command line: ``--sizes 8,64K,4M``."""

from __future__ import annotations

import argparse
from typing import List

from ddl.bootstrap import parse

__all__ = ["parse_sizes"]


def parse_sizes(text: str) -> List[int]:
    """Return the bytes of a list like ``8,64K,4M``. Raises ``argparse.ArgumentTypeError`` for other text."""
    try:
        parsed = [parse.size(entry) for entry in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: each size must be {error}") from error
    if not all(parsed):
        raise argparse.ArgumentTypeError(f"{text!r}: a size of 0 bytes cannot be timed; give 1 or more")
    return parsed
