"""``StartingWeights``: compares the weights of all ranks in the first round (ddl/adapter/same_weights.py)."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

import torch

import ddl
from ddl.adapter.same_weights import differing_weights, warn
from ddl_torch.gradients.entry import Entry

__all__ = ["StartingWeights"]

_ADVICE = "Call broadcast_parameters(model.state_dict(), root_rank=0) on all ranks before the first step"
#: Integers of as many bytes as an element: all bits count, those of a NaN, too.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class StartingWeights:
    """What the parameters were when the first round began.

    ``strict``: a difference is an error, not only told of. ``known``: there is nothing to compare.
    """

    def __init__(self, strict: bool, known: bool = False) -> None:
        self._strict = strict
        # By the identity of the entry; None: they have been compared.
        self._digests: Optional[Dict[int, int]] = None if known else {}

    def keep(self, entries: Sequence[Entry]) -> None:
        """Note the weights as they are now, unless the first round is over, or has begun before."""
        if self._digests is not None and not self._digests:
            self._digests = dict(zip(map(id, entries), _digests([entry.parameter for entry in entries])))

    def compare(self, communicator: ddl.Communicator, entries: Sequence[Entry]) -> Optional[ddl.Error]:
        """Return the error that all ranks are to raise. Collective in the first round, which all ranks end alike."""
        digests, self._digests = self._digests, None
        if digests is None or communicator.size == 1:
            return None
        known = [entry for entry in entries if entry.hook is not None]  # the same on all ranks: see same_model.py
        new = [entry.parameter for entry in known if id(entry) not in digests]
        digests.update(zip((id(entry) for entry in known if id(entry) not in digests), _digests(new)))
        own = [digests[id(entry)] for entry in known]
        text = differing_weights(communicator, [entry.name for entry in known], own, _ADVICE)
        if text is None:
            return None
        if self._strict:
            return ddl.InvalidState(f"{communicator.who} {text}")
        warn(communicator, text)
        return None


def _digests(parameters: Sequence[torch.Tensor]) -> List[int]:
    """Return the sum of the bits of each, taken as integers: as fast as memory is, also on a GPU."""
    sums = []
    with torch.no_grad():
        for parameter in parameters:
            real = torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter.detach()
            sums.append(real.view(_BITS[real.element_size()]).sum(dtype=torch.int64))
        return [int(total) for total in torch.stack([total.cpu() for total in sums])] if sums else []
