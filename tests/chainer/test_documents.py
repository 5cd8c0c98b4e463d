"""The code of docs/chainer.md runs on two ranks, to weights of the same bits; its table's names are ChainerMN's."""

from __future__ import annotations

import re

import pytest
import ranks
from documents import names_after, python_blocks, text_of

cases = pytest.importorskip("chainer_cases", reason="Chainer is not installed here")

TEXT, BLOCKS = text_of("docs/chainer.md"), python_blocks("docs/chainer.md")


def weights_after(code, folder):
    weights = cases.weights(names_after(code, folder)["model"])
    return b"".join(array.tobytes() for array in weights.values())


@pytest.mark.processes
@pytest.mark.parametrize("number", range(3), ids=["chainermn", "plain", "elastic"])
def test_code_runs_on_two_ranks(number, tmp_path):
    assert len(BLOCKS) == 3
    first, second = ranks.run(2, weights_after, BLOCKS[number], str(tmp_path), initialise=False)
    assert first == second and len(first) > 30


def test_every_name_of_the_table_is_chainermns():
    (table,) = re.findall(r"\| of ChainerMN \| here \|\n\|---\|---\|\n(.*?)\n\n", TEXT, re.DOTALL)
    names = [name for row in table.splitlines() for name in re.findall(r"`([\w.]+)`", row.split("|")[1])]
    names = [name for name in names if not name.isupper()]
    places = [cases.chainermn, *(getattr(cases.chainermn, part) for part in ("extensions", "links", "iterators"))]
    places += [cases.chainermn.functions, cases.chainermn.datasets, cases.chainermn.CommunicatorBase]
    assert len(names) > 40
    for name in names:
        assert any(hasattr(place, name.split(".")[-1]) for place in places), name


def test_every_public_name_is_described():
    import ddl_chainer

    for name in ddl_chainer.__all__:
        assert getattr(ddl_chainer, name).__doc__
        assert name in TEXT or name == "DDLCommunicator"
