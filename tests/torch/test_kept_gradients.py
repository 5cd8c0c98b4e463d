"""What is kept of the gradients that are sent, so that a round that is broken off can be done again.

A gradient as autograd brought it is kept as it is, and not copied, unless somebody else has it, too. Nobody dies here:
each rank's first wait for the averages is made to fail when they are there.
"""

from __future__ import annotations

from typing import Any, Dict, List
from unittest import mock

import pytest
import torch
from elastic.elastic_job import ElasticJob

import ddl
import ddl_torch
from ddl_torch.gradients.entry import Entry

WAYS = {
    "fresh": ["first.weight", "second.weight"],  # kept as they came; all others were copied
    "accumulated": ["first.weight", "second.weight"],
    "unused": ["first.weight"],
    "held": ["second.weight"],
    "in place": [],
}


class Network(torch.nn.Module):
    """Two layers; the second may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Linear(3, 3, bias=False).double() for _ in range(2))

    def forward(self, x: torch.Tensor, *, whole: bool) -> torch.Tensor:
        """Return the sum of what comes out for ``x``."""
        y = self.first(x)
        return (self.second(y) if whole else y).square().sum()


def train(way: str) -> Dict[str, Any]:
    torch.manual_seed(1)
    model = Network()
    passes = 2 if way == "accumulated" else 1
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ddl_torch.DistributedOptimizer(plain, model.named_parameters(), backward_passes_per_step=passes)
    held: List[torch.Tensor] = []
    if way == "held":
        model.first.weight.register_post_accumulate_grad_hook(lambda p: held.append(p.grad))
    rounds = optimizer._ddl._rounds
    receive = rounds._receive
    kept: List[str] = []
    own: List[List[float]] = []

    def entries() -> List[Entry]:
        return [entry for bucket in rounds.layout.buckets for entry in bucket.entries]

    def fail_once(*args: Any) -> Any:
        answer = receive(*args)
        if own:  # the round is done again
            return answer
        names = optimizer._ddl.names
        kept.extend(names[entry.parameter] for entry in entries() if entry.came is not None)
        for gradient in held:
            gradient.mul_(2)
        raise ddl.PeerLost("a rank is lost")

    def recover(lost: ddl.CommunicatorError) -> bool:
        own.extend(flat(p.grad) for p in model.parameters())
        return True

    optimizer._ddl.recover_by(recover)
    x = torch.arange(6.0, dtype=torch.float64).reshape(2, 3) + ddl.rank()
    parameters = [model.first.weight, *([] if way == "unused" else [model.second.weight])]
    expected = torch.autograd.grad(passes * model(x, whole=way != "unused"), parameters)
    if way == "in place":
        model(x, whole=True).backward()
        optimizer.zero_grad(set_to_none=False)
    held.clear()
    with mock.patch.object(rounds, "_receive", fail_once):
        for _ in range(passes):
            model(x, whole=way != "unused").backward()
    averages = [flat(parameter.grad) for parameter in parameters]
    assert all(entry.came is None for entry in entries())  # the round has ended
    return {"kept": kept, "own": own, "expected": list(map(flat, expected)), "averages": averages}


def flat(gradient: Any) -> List[float]:
    return [] if gradient is None else gradient.reshape(-1).tolist()


def train_in_all_ways() -> Dict[str, Any]:
    return {way: train(way) for way in WAYS}


@pytest.fixture(scope="module")
def answers() -> Dict[int, Any]:
    with ElasticJob(2, train_in_all_ways) as job:
        return job.finish()


@pytest.mark.parametrize("way", WAYS)
def test_a_round_is_done_again_with_the_gradients_that_were_sent(answers: Dict[int, Any], way: str) -> None:
    both = [answers[rank][way] for rank in range(2)]
    for answer in both:
        assert sorted(answer["kept"]) == WAYS[way]
        assert answer["own"][: len(answer["expected"])] == answer["expected"]
        for i, average in enumerate(answer["averages"]):
            assert average == [(a + b) / 2 for a, b in zip(both[0]["expected"][i], both[1]["expected"][i])]
