"""``--config-file``: ddlrun's long options from a TOML file, so that a command line need not be repeated.

    np = 8
    hosts = "a:4,b:4"
    start-timeout = 30
    verbose = true
    env = ["NCCL_DEBUG", "COLOUR=blue"]

What stands on the command line beats the file; where an option may be repeated, both count.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List

from ddl.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["options_from"]


def options_from(path: str) -> List[str]:
    """Return the file's settings as words of a command line. ConfigError says what is wrong with it."""
    try:
        with open(path, "rb") as file:
            settings: Dict[str, Any] = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"it cannot be read: {error}") from error
    words: List[str] = []
    for name, value in settings.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is False:
            continue
        else:
            for one in value if isinstance(value, list) else [value]:
                if not isinstance(one, (str, int, float)) or isinstance(one, bool):
                    raise ConfigError(f"{name} = {one!r} is neither text nor a number nor a list")
                words.append(f"{option}={one}")
    return words
