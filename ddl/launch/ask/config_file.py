"""``--config-file``: ddlrun's long options from a TOML file, so that a command line need not be repeated.

    np = 8
    hosts = "a:4,b:4"
    start-timeout = 30
    verbose = true
    env = ["NCCL_DEBUG", "COLOUR=blue"]

An option on the command line replaces that of the file. If an option may be repeated, both count. A file whose name
ends in .yaml or .yml is read as one of horovodrun's.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List

from ddl.errors import ConfigError
from ddl.launch.ask.horovod_only import options_from_sections

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["options_from"]


def options_from(path: str) -> List[str]:
    """Return the file's settings as arguments of a command line. ConfigError says what is wrong with it."""
    if path.endswith((".yaml", ".yml")):
        return options_from_sections(_yaml(path))
    try:
        with open(path, "rb") as file:
            settings: Dict[str, Any] = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"it cannot be read: {error}") from error
    arguments: List[str] = []
    for name, value in settings.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(option)
        elif value is False:
            continue
        else:
            for entry in value if isinstance(value, list) else [value]:
                if not isinstance(entry, (str, int, float)) or isinstance(entry, bool):
                    raise ConfigError(f"{name} = {entry!r} is neither text nor a number nor a list")
                arguments.append(f"{option}={entry}")
    return arguments


def _yaml(path: str) -> Dict[str, Any]:
    try:
        import yaml  # only this needs it, and horovodrun needs it, too
    except ImportError:
        raise ConfigError("a file in YAML needs PyYAML: pip install pyyaml, or write the options in TOML") from None
    try:
        with open(path, "rb") as file:
            sections = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"it cannot be read: {error}") from error
    if not isinstance(sections, dict):
        raise ConfigError("it has no sections such as params or stall_check")
    return sections
