"""Versions of TensorFlow and Keras: the only file of the adapter that may ask which one this is."""

from __future__ import annotations

import functools
import logging
import re
from typing import Tuple

__all__ = ["NEWEST_TESTED", "warn_if_newer"]

#: The newest that DDL's tests were run with.
NEWEST_TESTED = {"TensorFlow": "2.21", "Keras": "3.15"}

log = logging.getLogger("ddl")


def _numbers(version: str) -> Tuple[int, ...]:
    """Return major and minor number."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


@functools.cache
def warn_if_newer(name: str, version: str) -> None:
    """Say, once in a process, that ``version`` of TensorFlow or Keras is newer than the newest that was tested."""
    tested = NEWEST_TESTED[name]
    if _numbers(version) > _numbers(tested):
        log.warning(
            "%s %s is newer than %s, the newest that ddl_tensorflow was tested with. If something fails, try a newer "
            "DDL, or: pip install '%s==%s.*'",
            *(name, version, tested, name.lower(), tested),
        )
