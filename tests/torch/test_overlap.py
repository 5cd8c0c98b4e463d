"""Where averaging goes on in the background of the backward pass."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from ddl_torch.gradients import overlap  # noqa: E402


@pytest.mark.parametrize(
    "places, pays",
    [
        ([(0, [0, 1], 1), (0, [0, 1], 1)], False),  # every core computes
        ([(0, [0, 1, 2], 1), (0, [0, 1, 2], 1)], False),  # one is idle, two are needed
        ([(0, [0, 1, 2, 3], 1), (0, [0, 1, 2, 3], 1)], True),
        ([(0, [0, 1], 1), (0, [2, 3], 1)], True),  # pinned, with a core to spare each
        ([(0, [0], 1), (0, [1], 1)], False),
        ([(0, [0, 1], 1)], False),  # nobody to average with
        ([(0, [0, 1, 2, 3], 2), (0, [0, 1, 2, 3], 2)], False),
        ([(0, [0], 1), (1, [0], 1)], True),  # two hosts
    ],
)
def test_where_it_pays(places, pays):
    assert overlap.pays(places) == pays
