"""Ranks that begin with different weights are told so in the first step: a broadcast was forgotten."""

from __future__ import annotations

import logging
import socket
from typing import Any, Dict, List, Optional, Tuple

import pytest
import ranks
import said

torch = pytest.importorskip("torch")
from torch_training import data, half, linear  # noqa: E402 (it needs torch, which may not be there)

pytestmark = pytest.mark.processes
ADVICE = "Call broadcast_parameters(model.state_dict(), root_rank=0) on all ranks before the first step"


def trained(odd: Optional[str], options: Dict[str, Any]) -> Tuple[List[str], str]:
    """Two steps, in which rank 1 begins with another tensor ``odd``; return the warnings, and the error."""
    import ddl as core
    import ddl_torch as ddl

    model = linear(6, 10, 3)
    model.register_parameter("frozen", torch.nn.Parameter(torch.zeros(2), requires_grad=False))
    if odd is not None and ddl.rank() == 1:
        with torch.no_grad():
            dict(model.named_parameters())[odd].reshape(-1)[-1] += 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ddl.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), tune_allocator=False, **options
    )
    before = [p.detach().clone() for p in model.parameters()]
    warned = said.Said(level=logging.WARNING)
    for step in range(2):
        try:
            model(half(data(step), ddl.rank())).pow(2).mean().backward()
            optimizer.step()
        except core.InvalidState as error:
            assert all(map(torch.equal, before, model.parameters()))
            return warned.texts, str(error)
    return warned.texts, ""


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"backward_passes_per_step": 2}], ids=str)
def test_equal_weights_are_not_told_of(options: Dict[str, Any]) -> None:
    assert ranks.run(2, trained, None, options) == 2 * [([], "")]


@pytest.mark.parametrize("options", [{}, {"overlap_update": True}, {"compression": "powersgd"}], ids=str)
def test_different_weights_are_told_of_once(options: Dict[str, Any]) -> None:
    of_rank_0, *others = ranks.run(3, trained, "2.weight", options)
    text = "the ranks begin with different weights, so each would train another model: rank 1 has another '2.weight'"
    assert of_rank_0[0] == [f"[rank 0/3 host {socket.gethostname()}] {text} than rank 0. {ADVICE}"]
    assert others == 2 * [([], "")]


def test_different_weights_are_an_error_where_all_is_checked() -> None:
    for warned, error in ranks.run(2, trained, "0.bias", {"check": 1}):
        assert warned == [] and "rank 1 has another '0.bias' than rank 0. " + ADVICE in error, error


def test_parameters_that_nobody_trains_may_differ() -> None:
    assert ranks.run(2, trained, "frozen", {}) == 2 * [([], "")]
