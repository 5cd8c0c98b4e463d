"""The code of documents: its blocks, and what running one in this process defines."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).resolve().parents[1]


def text_of(document: str) -> str:
    """Return a document, by its path from the root."""
    return (ROOT / document).read_text(encoding="utf-8")


def python_blocks(document: str) -> List[str]:
    """Return its blocks of Python, in their order."""
    return re.findall(r"```python\n(.*?)```", text_of(document), re.DOTALL)


def names_after(code: str, folder: str) -> Dict[str, Any]:
    """Run the code in a folder, as the program of its process; return what it has defined. What it prints is lost."""
    os.chdir(folder)
    names: Dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "a document", "exec"), names)
    return names
