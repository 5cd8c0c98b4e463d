"""Numbers on the command line: in a file of their own, because cli.py and modules that it imports both read them."""

from __future__ import annotations

import re
from typing import Optional

from ddl.bootstrap import parse
from ddl.errors import ConfigError

__all__ = ["seconds", "whole_number"]


def whole_number(option: str, text: Optional[str], least: int = 1) -> Optional[int]:
    """Return the value of ``option``; None if it was not given. ConfigError if it is no number from ``least`` up."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or int(text) < least:
        raise ConfigError(f"{option} {text}: it must be a whole number from {least} up")
    return int(text)


def seconds(name: str, text: Optional[str]) -> Optional[float]:
    """Return the value of the option or variable ``name``; None if it was not given. ConfigError if it is not above 0.

    Fractions are allowed.
    """
    if not text:
        return None
    try:
        return parse.seconds(text)
    except ValueError as error:
        raise ConfigError(f"{name} {text}: it must be {error}") from None
