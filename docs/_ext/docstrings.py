"""Turns our docstrings, which are written to be read by ``help()``, into reStructuredText.

An argument has a line ``name: text``, whose further lines are indented: that becomes an item of a list. Names of
errors and of pages become links. A star, a bar or an underscore means itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterator, List

from ddl.errors import __all__ as ERRORS

__all__ = ["rewritten", "setup"]

_DOCS = Path(__file__).resolve().parents[1]
_ARGUMENT = re.compile(r"(\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*): ")


def _inline(text: str) -> str:
    """Return a line with its literals as they are, links for errors and pages, and the rest without markup."""
    parts = re.split(r"(``.*?``)", text)
    for index, part in enumerate(parts):
        if index % 2:
            name = part.strip("`")
            parts[index] = f":py:obj:`{name} <ddl.{name}>`" if name in ERRORS else part
            if re.match(r"\w", parts[index + 1]):
                parts[index] += "\\ "  # else markup does not end before a letter
        else:
            part = re.sub(r"([*|`])", r"\\\1", part)
            part = re.sub(r"(?<=\w)_(?!\w)", r"\\_", part)
            parts[index] = re.sub(r"docs/(\w+)\.md", _page, part)
    return "".join(parts)


def _page(match: re.Match[str]) -> str:
    return f":doc:`/docs/{match[1]}`" if (_DOCS / f"{match[1]}.md").exists() else match[0]


def rewritten(lines: List[str]) -> Iterator[str]:
    """Yield the lines of a docstring as reStructuredText."""
    blocks: List[List[str]] = [[]]
    for line in lines:
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    literal = False  # behind a paragraph that ends with "::"
    for block in blocks:
        if literal and block and block[0].startswith(" "):
            yield from [*block, ""]
            continue
        literal = bool(block) and block[-1].endswith("::")
        if block and block[0].startswith(">>>"):
            yield from [*block, ""]
        elif block and _ARGUMENT.match(block[0]):
            yield from [*_items(block), ""]
        else:
            yield from [*(_inline(line.strip() if not literal else line) for line in block), ""]


def _items(block: List[str]) -> Iterator[str]:
    for line in block:
        match = None if line.startswith(" ") else _ARGUMENT.match(line)
        if match:
            names = ", ".join(f"**{name}**" for name in match[1].replace("*", "").split(", "))
            yield f"* {names}: {_inline(line[match.end() :])}"
        else:
            yield f"  {_inline(line.strip())}"


def setup(app: Any) -> None:
    """Let autodoc call us for each docstring."""

    def process(app: Any, what: str, name: str, thing: Any, options: Any, lines: List[str]) -> None:
        lines[:] = list(rewritten(list(lines)))

    app.connect("autodoc-process-docstring", process)
