"""Communicators that write float32 in fewer bytes between hosts, and a measurement of which one is fastest.

It knows no framework. Adapters call it once, when an optimizer is made with ``compression=``. The codes are described
in csrc/reduce/wire_codec.h and docs/compression.md.
"""

from __future__ import annotations

import logging
from typing import Dict, List, Sequence

import numpy as np

from ddl.communicator import Communicator, Work
from ddl.reduce_op import Sum
from ddl.text.units import bytes_text, duration
from ddl.tuning.choose import MARGIN
from ddl.tuning.measure.turns import settle

__all__ = ["fastest", "on_wire"]

log = logging.getLogger("ddl")

_TRIED = ("bf16", "int8")  #: by ``fastest``, besides the communicator's own wire
_ROUNDS = 6  #: of a series of measurements
_MOST_BYTES = 64 << 20  #: that one measurement averages


def on_wire(communicator: Communicator, wire: str) -> Communicator:
    """Return a communicator of the same ranks that writes large all-reduces of float32 as ``wire`` between hosts.

    Collective, blocking; it is closed with ``communicator``, at the latest. ``wire``: "bf16", "fp16" or "int8".
    """
    compressed = communicator._split(0, wire=wire)
    assert compressed is not None  # every rank has the same color
    return compressed


class _TrialStep:
    """What a step averages, all at once in the background. The arrays hold zeros, and sums of zeros stay zeros."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays: List[np.ndarray] = []
        self.bytes = 0
        for array in arrays:
            if not self._arrays or self.bytes + array.nbytes <= _MOST_BYTES:
                self._arrays.append(array)
                self.bytes += array.nbytes

    def run(self, world: Communicator) -> None:
        works: List[Work] = [world.allreduce_async_(array, op=Sum) for array in self._arrays]
        for work in works:
            work.wait()


def fastest(communicator: Communicator, arrays: Sequence[np.ndarray]) -> Communicator:
    """Return the communicator by which arrays like ``arrays`` are averaged fastest; say on rank 0 which, and why.

    Collective, blocking: a few seconds where the network is slow. Another wire than the communicator's own is chosen
    only if it is faster by more than 5 %, twice; never where all ranks share memory, as nothing is sent there.
    ``arrays``: the buffers of float32, alike on all ranks; they hold zeros, and do so afterwards.
    """
    topology = communicator.topology
    step = _TrialStep(arrays)
    if topology.local_size == topology.size or not step.bytes:
        why = "all ranks share memory, so nothing is sent" if step.bytes else "there is no float32"
        _tell(communicator, f"compression auto: none ({why} that could be compressed)")
        return communicator
    names = [communicator.wire, *(wire for wire in _TRIED if wire != communicator.wire)]
    runners = {0: communicator}
    runners.update({number: on_wire(communicator, wire) for number, wire in enumerate(names) if number})
    for runner in runners.values():
        step.run(runner)  # makes the connections
    outcome, medians = settle(communicator, runners, 0, step, _ROUNDS, 1)
    for number, runner in runners.items():
        if number not in (0, outcome.chosen):
            runner.close()
    _tell(communicator, _verdict(names, outcome.chosen, medians, step.bytes))
    return runners[outcome.chosen]


def _verdict(names: Sequence[str], chosen: int, medians: Dict[int, float], nbytes: int) -> str:
    times = ", ".join(f"{name} {duration(medians[number])}" for number, name in enumerate(names))
    if chosen:
        why = f"{medians[0] / medians[chosen]:.1f} times as fast as {names[0]}"
    else:
        why = f"nothing else was faster by more than {MARGIN:.0%} twice"
    return (
        f"compression auto: {names[chosen] if chosen else 'none'} ({why}; {bytes_text(nbytes)} of gradients: {times})"
    )


def _tell(communicator: Communicator, text: str) -> None:
    """Log what "auto" has chosen where users see it: the arithmetic of a job depends on it."""
    if communicator.rank == 0:
        log.warning("%s", text)
