"""What planners and the core know of each collective is the same, and names every one."""

from __future__ import annotations

from ddl import _core
from ddl.plan.collectives import TRAITS
from ddl.plan.ir import Collective


def test_planners_and_the_core_know_the_same() -> None:
    rows = []
    for collective in Collective:
        traits = TRAITS[collective]
        buffers = [(buffer.holders.value, buffer.content.value) for buffer in (traits.input, traits.output)]
        name = collective.name.lower()
        rows.append((int(collective), name, *buffers[0], *buffers[1], traits.reduces, traits.rooted))
    assert rows == _core.collectives()
