"""What every tool does for ``--json FILE``."""

from __future__ import annotations

import json
import sys
from typing import Dict

__all__ = ["write_json"]


def write_json(path: str, content: Dict[str, object]) -> None:
    """Write ``content`` to a file, or for "-" to standard output."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
