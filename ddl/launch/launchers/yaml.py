"""Writes plain data as readable YAML: blocks, and quotes only where they are needed. No I/O.

It knows only what a manifest needs: dictionaries with names as keys, lists, strings, whole numbers and booleans.
A string that YAML could take for something else is written as JSON writes it, which YAML reads as the same string.
"""

from __future__ import annotations

import json
import re
from typing import List, Mapping, Sequence, Union

from ddl.errors import ConfigError

__all__ = ["Value", "document"]

Value = Union[str, int, bool, Mapping[str, "Value"], Sequence["Value"]]

#: Begins, but for dashes, with a letter or "/", so it is no number, date or sign of YAML's; no colon ends a word in it.
_PLAIN = re.compile(r"-{0,2}[A-Za-z/](?:[\w./-]|:(?=\w))*", re.ASCII)
_WORDS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}  # booleans and null, in one YAML or another
_UNPRINTABLE = re.compile("[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def document(value: Mapping[str, Value], comment: str = "") -> str:
    """Return one YAML document, without the line ``---``; the lines of ``comment`` stand before it."""
    lines = [f"# {line}" for line in comment.splitlines()]
    return "\n".join([*lines, *_block(value)]) + "\n"


def _block(value: Union[Mapping[str, Value], Sequence[Value]]) -> List[str]:
    if isinstance(value, Mapping):
        return [line for name, entry in value.items() for line in _entry(f"{_scalar(name)}:", entry)]
    return [line for entry in value for line in _item(entry)]


def _entry(name: str, value: Value) -> List[str]:
    if isinstance(value, (str, int)):
        return [f"{name} {_scalar(value)}"]
    if not value:
        return [f"{name} {'{}' if isinstance(value, Mapping) else '[]'}"]
    return [name, *(f"  {line}" for line in _block(value))]


def _item(value: Value) -> List[str]:
    if isinstance(value, (str, int)):
        return [f"- {_scalar(value)}"]
    if not value:
        return ["- {}" if isinstance(value, Mapping) else "- []"]
    first, *rest = _block(value)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _scalar(value: Union[str, int]) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{value!r} holds bytes that are not UTF-8, which YAML cannot express; rename it") from None
    return _UNPRINTABLE.sub(lambda match: f"\\U{ord(match[0]):08x}", json.dumps(value, ensure_ascii=False))
