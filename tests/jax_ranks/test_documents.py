"""The code of docs/jax.md runs on two ranks, to the same weights; the examples come to what one process does."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from documents import python_blocks, text_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
slow = [pytest.mark.processes, pytest.mark.slow]
SHOWN = "\nprint('weights', np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves({})]).tobytes().hex())\n"


def same_on_both(done):
    assert done.returncode == 0, done.stdout + done.stderr
    weights = re.findall(r"weights (\w+)", done.stdout)
    assert len(weights) == 2 and weights[0] == weights[1] and len(weights[0]) > 60


@pytest.mark.parametrize("block", [pytest.param(0, marks=slow), pytest.param(1, marks=slow)])
def test_code_runs_on_two_ranks(ddlrun, tmp_path, block):
    pytest.importorskip("keras" if block else "optax", reason="the page's code needs it")
    code = python_blocks("docs/jax.md")[block]
    shown = SHOWN.format("model.get_weights()" if block else "(parameters, state)")
    program = tmp_path / "page.py"
    program.write_text(code + "\nimport jax\n" + shown)
    same_on_both(ddlrun(2, str(program), options=""))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("jax_digits.py", "--jax", marks=slow),
        pytest.param("jax_optax_digits.py", "", marks=slow),
    ],
)
def test_examples_come_to_what_one_process_does(ddlrun, tmp_path, name, options):
    pytest.importorskip("sklearn", reason="the digits are in scikit-learn")
    results = []
    for size in (1, 2):
        path = tmp_path / f"{size}.json"
        arguments = ["--epochs", "3", "--width", "64", "--json", str(path)]
        done = ddlrun(size, str(EXAMPLES / name), *arguments, options=options)
        assert done.returncode == 0, done.stdout + done.stderr
        results.append(json.loads(path.read_text()))
    alone, two = results
    assert (alone["processes"], two["processes"]) == (1, 2)
    assert two["loss"] == pytest.approx(alone["loss"], rel=0.02)
    assert min(alone["accuracy"], two["accuracy"]) > 0.85


def test_all_names_are_in_the_document():
    assert importlib.util.find_spec("jaxlib") is not None, "the conftest skips it otherwise"
    import ddl_jax

    text = text_of("docs/jax.md")
    assert [name for name in ddl_jax.__all__ if not re.search(rf"`(ddl\.)?{name}\b", text)] == []
    assert all(hasattr(ddl_jax, name) for name in ddl_jax.__all__)
