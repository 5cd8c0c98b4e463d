"""The code of docs/tensorflow.md runs on two ranks, to weights of the same bits; the names of its tables are there."""

from __future__ import annotations

import pkgutil
import re

import pytest
import ranks
from documents import names_after, python_blocks, text_of

pytest.importorskip("tensorflow")

TEXT, BLOCKS = text_of("docs/tensorflow.md"), python_blocks("docs/tensorflow.md")


def weights_after(code, folder):
    names = names_after(code, folder)
    if "model" in names:
        return b"".join(weight.tobytes() for weight in names["model"].get_weights())
    return names["trained"].tobytes()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("number", range(3), ids=["keras", "loop", "session"])
def test_code_runs_on_two_ranks(number, tmp_path):
    assert len(BLOCKS) == 3
    first, second = ranks.run(2, weights_after, BLOCKS[number], str(tmp_path), initialise=False)
    assert first == second and len(first) > 30


def rows_of(title):
    (table,) = re.findall(rf"\| {re.escape(title)} \| here \|\n\|---\|---\|\n(.*?)\n\n", TEXT, re.DOTALL)
    return [name for row in table.splitlines() for name in re.findall(r"`([\w.]+)`", row.split("|")[1])]


@pytest.mark.parametrize(
    ("title", "module"),
    [
        ("`horovod.tensorflow`", "ddl_tensorflow"),
        ("`horovod.tensorflow.keras`, `horovod.keras`", "ddl_tensorflow.keras"),
    ],
)
def test_every_name_of_the_tables_is_there(title, module):
    names = rows_of(title)
    assert len(names) > 10
    for name in names:
        assert pkgutil.resolve_name(f"{module}.{name}") is not None
