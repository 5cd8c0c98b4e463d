"""The code of docs/theano.md and docs/adapters.md runs on two ranks, to parameters of the same bits."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

import pytest
import ranks

pytest.importorskip("theano.tensor", reason="Theano is not installed in this environment")

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes


def parameters_after(code, folder):
    """Run the code in a folder; return the bytes of what it has trained."""
    os.chdir(folder)
    found = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "a document", "exec"), found)
    return b"".join(one.get_value().tobytes() for one in found["parameters"])


@pytest.mark.parametrize("document", ["theano.md", "adapters.md"])
def test_code_runs_on_two_ranks(document, tmp_path):
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    first, second = ranks.run(2, parameters_after, "\n".join(blocks), str(tmp_path), initialise=False)
    assert first == second and len(first) > 30


def test_all_names_are_in_the_document():
    import ddl_theano

    text = (ROOT / "docs" / "theano.md").read_text(encoding="utf-8")
    assert [name for name in ddl_theano.__all__ if not re.search(rf"`(ddl\.)?{name}\b", text)] == []
    assert all(hasattr(ddl_theano, name) for name in ddl_theano.__all__)
