"""The code of docs/theano.md and docs/adapters.md runs on two ranks, to parameters of the same bits."""

from __future__ import annotations

import re

import pytest
import ranks
from documents import names_after, python_blocks, text_of

pytest.importorskip("theano.tensor", reason="Theano is not installed in this environment")

pytestmark = pytest.mark.processes


def parameters_after(code, folder):
    return b"".join(parameter.get_value().tobytes() for parameter in names_after(code, folder)["parameters"])


@pytest.mark.slow  # what the code needs is compiled first
@pytest.mark.parametrize("document", ["theano.md", "adapters.md"])
def test_code_runs_on_two_ranks(document, tmp_path):
    blocks = python_blocks(f"docs/{document}")
    assert blocks
    first, second = ranks.run(2, parameters_after, "\n".join(blocks), str(tmp_path), initialise=False)
    assert first == second and len(first) > 30


def test_all_names_are_in_the_document():
    import ddl_theano

    text = text_of("docs/theano.md")
    assert [name for name in ddl_theano.__all__ if not re.search(rf"`(ddl\.)?{name}\b", text)] == []
    assert all(hasattr(ddl_theano, name) for name in ddl_theano.__all__)
