"""What adapters use besides verbs (ddl/adapter/calls.py): the example of docs/adapters.md, and a call to fail."""

from __future__ import annotations

import numpy as np
import pytest
import ranks
from documents import names_after, python_blocks

import ddl
from ddl.adapter.calls import calls_of

pytestmark = pytest.mark.processes


def test_the_documents_example_runs(tmp_path: object) -> None:
    (code,) = (block for block in python_blocks("docs/adapters.md") if "calls_of" in block)
    for names in ranks.run(3, names_of_result, code, str(tmp_path), initialise=False):
        assert names == [[0] * 4, [1] * 4, [2] * 4]


def names_of_result(code: str, folder: str) -> object:
    return names_after(code, folder)["everybody"].tolist()


def failing() -> str:
    calls = calls_of(ddl.world())
    assert not calls.failed
    calls.check()
    with pytest.raises(ddl.CollectiveTimeout) as caught:
        if ddl.rank() == 1:
            for rank in (0, 2):
                ddl.recv(np.empty(1), rank)  # it has looked
            calls.fail(ddl.CollectiveTimeout, 2, "rank 2 has not said a word")
        ddl.send(np.zeros(1), 1)
        ddl.barrier()
    assert calls.failed
    with pytest.raises(ddl.CollectiveTimeout):
        calls.check()
    return str(caught.value)


def test_all_ranks_fail_alike() -> None:
    texts = ranks.run(3, failing)
    assert all("rank 2 has not said a word" in text for text in texts)
