"""docs/torch.md says of every public function of ``torch.distributed`` what the backend "ddl" makes of it."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "torch.md"


def public():
    import torch.distributed as dist

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # old names warn when they are looked at
        return {name for name in dir(dist) if not name.startswith("_") and inspect.isroutine(getattr(dist, name))}


def test_the_table_has_every_function_of_torch():
    table = "\n".join(line for line in DOCUMENT.read_text().splitlines() if line.startswith("|"))
    named = set(re.findall(r"`(\w+)[`(]", table))
    assert {"all_reduce", "recv", "split_group"} <= public()
    assert not public() - named, "say in docs/torch.md what the backend makes of these"
