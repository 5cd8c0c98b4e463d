"""What ``help`` says of the functions that newcomers meet first: every parameter, what is raised, code that runs."""

from __future__ import annotations

import doctest
import inspect
import re

import numpy as np
import pytest

import ddl

torch = pytest.importorskip("torch")

import ddl_torch  # noqa: E402 (it needs torch, which may not be there)

MAIN = {
    ddl: "init rank size allreduce allreduce_ broadcast broadcast_ allgather reducescatter barrier broadcast_object "
    "shutdown",
    ddl_torch: "init rank size DistributedOptimizer broadcast_parameters broadcast_optimizer_state allreduce allgather "
    "broadcast broadcast_object barrier join",
}


@pytest.fixture
def alone():
    ddl_torch.init()
    yield
    ddl_torch.shutdown()


def objects():
    model = torch.nn.Linear(3, 2)
    return {
        **{
            "ddl": ddl,
            "ddl_torch": ddl_torch,
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        },
        **{"gradient": np.ones(3), "gradients": np.ones((4, 3)), "weights": np.ones(3), "rows": np.ones((2, 3))},
        **{"tensor": torch.ones(3), "weight": torch.ones(3), "epoch": 3},
    }


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name"), [(p, name) for p, names in MAIN.items() for name in names.split()])
def test_help_says_all_and_its_example_runs(alone, package, name):
    function = getattr(package, name)
    text = inspect.getdoc(function)
    summary, empty, *_ = text.splitlines()
    assert summary.endswith(".") and len(summary) <= 120 and not empty
    signature = inspect.signature(function.__new__ if inspect.isclass(function) else function)
    assert all(re.search(rf"\b{parameter}\b", text) for parameter in signature.parameters if parameter != "cls")
    assert "Raises" in text
    assert "<" not in str(signature), signature  # an object without a name that people write
    examples = doctest.DocTestParser().get_examples(text)
    space = objects()
    for example in examples:
        if example.want:
            assert repr(eval(example.source, space)) == example.want.strip()
        else:
            exec(example.source, space)
    assert examples
