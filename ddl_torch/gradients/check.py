"""``GradientCheck``: computes averages of gradients a second time, in another way: ``DistributedOptimizer(check=…)``.

Each rank keeps a copy of what it gives to the reduction. Afterwards the ranks exchange copies and results by
all-to-all, which moves numbers and never adds any. Rank r gets part r of every rank's, adds the copies up in float64 in
the order of the ranks, and judges every rank's result. So the ranks share the work, and memory does not grow with their
number. Its cost and its errors: docs/check.md.

Called by the reducer's thread. A step that is not checked costs a comparison of integers per bucket.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch

import ddl
from ddl_torch.gradients.bucket import GradientBucket
from ddl_torch.gradients.options import OptimizerOptions
from ddl_torch.verbs import alltoall

__all__ = ["GradientCheck"]

#: What an element is rounded to on its way between hosts, if float32 is written shorter there.
_WIRES = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: How many ranks' values an error shows.
_SHOWN = 8

#: (0 for a number that is not finite, 1 for a wrong result), bucket, element, rank, text: the least one is reported.
Finding = Tuple[int, int, int, int, str]


class GradientCheck:
    """Checks the buckets of every ``options.check``-th step, from the first on."""

    def __init__(self, communicator: ddl.Communicator, options: OptimizerOptions) -> None:
        self._communicator = communicator
        self._op = options.op
        self._every = options.check
        self._predivide = options.gradient_predivide_factor
        self._step = 0  # steps that have ended
        self._kept: List[Tuple[GradientBucket, torch.Tensor]] = []

    def begin(self) -> None:
        """Start a round; what was kept in one that was not sent to its end is forgotten."""
        self._kept = []

    def keep(self, bucket: GradientBucket) -> None:
        """Copy what this rank is about to hand to the reduction, if this step is checked."""
        if self._step % self._every == 0:
            self._kept.append((bucket, bucket.flat.clone()))

    def end(self) -> Optional[ddl.Error]:
        """End a step whose buckets are reduced. Returns the error that all ranks are to raise, the same on each.

        Collective and blocking where the step is checked.
        """
        number, self._step = self._step, self._step + 1
        if number % self._every:
            return None
        kept, self._kept = self._kept, []
        findings = [finding for finding in (self._examine(*entry) for entry in kept) if finding is not None]
        answers: List[Optional[Finding]] = self._communicator.allgather_object(min(findings, default=None))
        first = min((answer for answer in answers if answer is not None), default=None)
        if first is None:
            return None
        where = f"{self._communicator.who} check of step {number + 1}: "
        return (ddl.InvalidState if first[0] == 0 else ddl.InternalError)(where + first[4])

    def _examine(self, bucket: GradientBucket, kept: torch.Tensor) -> Optional[Finding]:
        """Return what is wrong first in this rank's part of a bucket. Collective, blocking."""
        inputs, results = self._parts(kept), self._parts(bucket.flat)
        start = self._communicator.rank * inputs.shape[1]
        strange = ~torch.isfinite(inputs)
        if strange.any():
            element, rank = _first(strange)
            value = inputs[rank, element].item()
            text = (
                f"the gradient of {bucket.place(start + element)} is {value} on rank {rank}, before anything is "
                "averaged. Look at the loss and the data of that rank; torch.autograd.detect_anomaly() finds the "
                "operation. The weights are as before this step"
            )
            return 0, bucket.number, start + element, rank, text
        right, bound = self._reference(inputs)
        # Written so that a NaN counts as wrong; all ranks must have the same bits, too.
        wrong = ~((results.to(right.dtype) - right).abs() <= bound) | (results != results[0])
        if not wrong.any():
            return None
        element, rank = _first(wrong)
        if not torch.isfinite(results[:, element]).any() and self._overflows(inputs[:, element]):
            text = (
                f"the gradients of {bucket.place(start + element)}, {_listed(inputs[:, element])} by rank, add up to "
                f"more than {inputs.dtype} holds. Scale the loss down, or pass gradient_predivide_factor with "
                "op=ddl.Average. The weights are as before this step"
            )
            return 0, bucket.number, start + element, rank, text
        alike = bool((results[:, element] == results[0, element]).all())
        where = "all ranks" if alike else f"rank {rank}"
        text = (
            f"the {self._op.name.lower()} of the gradients of {bucket.place(start + element)} is "
            f"{results[rank, element].item()} on {where}; adding up in float64 gives {right[element].item()}, and "
            f"rounding explains {bound[element].item():.1e}. By rank: gradients {_listed(inputs[:, element])}, results "
            f"{_listed(results[:, element])}. Either something else writes to gradients, or DDL or a machine computes "
            "wrongly: please report it if it comes again. The weights are as before this step"
        )
        return 1, bucket.number, start + element, rank, text

    def _overflows(self, column: torch.Tensor) -> bool:
        """Return whether a sum of these may leave the range of their type."""
        magnitude = column.to(torch.complex128 if column.is_complex() else torch.float64).abs().sum()
        return bool(magnitude / self._predivide > torch.finfo(self._narrow(column.dtype)).max)

    def _narrow(self, dtype: torch.dtype) -> torch.dtype:
        """Return the narrowest type that elements of ``dtype`` are rounded to on their way."""
        short = dtype in (torch.float32, torch.complex64)
        return _WIRES.get(self._communicator.wire, dtype) if short else dtype

    def _parts(self, flat: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of every rank's ``flat``: a row for each rank. Collective, blocking."""
        size = self._communicator.size
        share = -(-flat.numel() // size)
        padded = flat.new_zeros(share * size)
        padded[: flat.numel()] = flat
        received = alltoall(padded, communicator=self._communicator)
        assert isinstance(received, torch.Tensor)
        return received.view(size, share)

    def _reference(self, inputs: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return what the rows reduce to, in float64, and how far rounding may take each element from it."""
        size, share = inputs.shape
        wide = torch.complex128 if inputs.is_complex() else torch.float64
        total = torch.zeros(share, dtype=wide, device=inputs.device)
        magnitude = torch.zeros(share, dtype=torch.float64, device=inputs.device)
        for row in inputs:
            total += row
            magnitude += row.to(wide).abs()
        if self._op == ddl.Average:
            total, magnitude = total / size, magnitude / size
        # A rounding per addition, division and copy, each of at most eps / 2 of what is there by then. Very small
        # numbers are spaced evenly, and processors may take those of float32 for zero. Gradients that are divided first
        # are rounded where they are smaller than in the end.
        info = torch.finfo(self._narrow(inputs.dtype))
        least = max(info.smallest_normal * info.eps, torch.finfo(torch.float32).smallest_normal)
        least *= max(1.0, self._predivide / size)
        return total, (size + 2) * (info.eps * magnitude + least)


def _first(mask: torch.Tensor) -> Tuple[int, int]:
    """Return element and rank of the first True in a mask of a row for each rank; elements come first."""
    element = int(mask.any(0).nonzero()[0])
    return element, int(mask[:, element].nonzero()[0])


def _listed(values: torch.Tensor) -> str:
    shown = ", ".join(str(value) for value in values[:_SHOWN].tolist())
    return f"[{shown}, …]" if len(values) > _SHOWN else f"[{shown}]"
