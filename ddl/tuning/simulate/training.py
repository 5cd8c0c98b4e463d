"""A training step in virtual time: forward pass, backward pass, and the all-reduces of its buckets.

``ddl.plan.buckets`` puts gradients into buckets, as the adapters do. The backward pass runs the layers in reverse. A
bucket is submitted when its last gradient is ready, and after the buckets before it (``ddl_torch``). At the end the
step waits for the all-reduces that are not finished: the *exposed* communication. Without overlap, all buckets are
submitted when the backward pass ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Sequence, Tuple

from ddl.errors import ConfigError
from ddl.plan.buckets import BUCKET_BYTES, Gradient, assign
from ddl.topology import Topology
from ddl.tuning.select import Line
from ddl.tuning.simulate.cost import Machine
from ddl.tuning.simulate.models import Model
from ddl.tuning.simulate.simulation import Lateness, SimulatedOperation, SimulatedTimes, allreduces

__all__ = ["SimulatedStep", "Workload", "buckets_of", "train"]

_ELEMENT_BYTES = 4  # float32


@dataclass(frozen=True)
class Workload:
    """What one rank computes in a step, and how its gradients are sent.

    ``compute_s`` is forward and backward pass together, in seconds; ``forward`` is the part of the forward pass. It is
    a third by default: the backward pass computes two matrix products for each one of the forward pass.
    """

    model: Model
    compute_s: float
    bucket_bytes: int = BUCKET_BYTES
    overlap: bool = True
    forward: float = 1 / 3

    def __post_init__(self) -> None:
        if not self.compute_s > 0 or not 0 < self.forward < 1:
            raise ConfigError(
                f"a step computes for {self.compute_s} s, {self.forward} of it forward; "
                "give a time above 0 and a part between 0 and 1"
            )


@dataclass(frozen=True)
class SimulatedStep:
    """One simulated step of ``size`` ranks; all times in seconds from its beginning."""

    size: int
    compute_s: float  #: forward and backward pass of a rank that is no straggler
    forward_s: float
    step_s: float  #: until the last rank is done
    communication_s: float  #: during which an all-reduce was under way, on the rank that ended last
    buckets: Tuple[SimulatedOperation, ...]
    outcome: SimulatedTimes

    @property
    def exposed_s(self) -> float:
        """Return the seconds of the step without computation."""
        return self.step_s - self.compute_s

    @property
    def efficiency(self) -> float:
        """Return the speed of a rank of this job, relative to that of a job of one rank."""
        return self.compute_s / self.step_s


def buckets_of(workload: Workload) -> List[SimulatedOperation]:
    """Return the all-reduces of a step: the bytes of each, and when it is submitted."""
    layers = workload.model.layers
    gradients = [Gradient(n, "float32", _ELEMENT_BYTES) for layer in layers for n in layer.tensors]
    layer_of = [number for number, layer in enumerate(layers) for _ in layer.tensors]
    forward = workload.compute_s * workload.forward
    backward = workload.compute_s - forward
    total = sum(layer.flops for layer in layers)
    done = [0.0] * len(layers)  # when a layer's backward pass has ended
    passed = 0.0
    for number in reversed(range(len(layers))):
        passed += layers[number].flops
        done[number] = forward + backward * (passed / total if total else 1.0)
    operations: List[SimulatedOperation] = []
    ready = 0.0
    for bucket in assign(gradients, bucket_bytes=workload.bucket_bytes):
        last = min(layer_of[slot.item] for slot in bucket.slots)
        ready = max(ready, done[last]) if workload.overlap else workload.compute_s
        operations.append(SimulatedOperation(bucket.bytes, ready))
    return operations


def train(
    machine: Machine,
    topology: Topology,
    workload: Workload,
    *,
    lines: Sequence[Line] = (),
    stragglers: Mapping[int, Lateness] = {},  # noqa: B006  (read only)
    watch: Sequence[int] = (),
) -> SimulatedStep:
    """Simulate one step; arguments and errors are those of ``allreduces``."""
    buckets = buckets_of(workload)
    outcome = allreduces(machine, topology, buckets, lines=lines, stragglers=stragglers, watch=watch)
    slowest = max([workload.compute_s, *(late.of(workload.compute_s) for late in stragglers.values())])
    step = max(slowest, outcome.seconds)
    last = max(outcome.ends, key=lambda rank: max(outcome.ends[rank]))
    late = stragglers.get(last, Lateness())
    begins = [late.of(bucket.ready_s) for bucket in buckets]
    return SimulatedStep(
        size=machine.size,
        compute_s=workload.compute_s,
        forward_s=workload.compute_s * workload.forward,
        step_s=step,
        communication_s=_busy(begins, outcome.ends[last]),
        buckets=tuple(buckets),
        outcome=outcome,
    )


def _busy(begins: Sequence[float], ends: Sequence[float]) -> float:
    """Return the length of the union of intervals that begin in ascending order."""
    busy, until = 0.0, 0.0
    for begin, end in zip(begins, ends):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy
