"""``DeltaReducer``: what ``DistributedOptimizer`` does with ``op=ddl.Adasum``: ranks combine steps, not gradients.

Every rank takes its own step, by its own gradients, from weights that all have alike. The step's *deltas*, weights
after minus weights before, are combined by Adasum, and the result is added to the weights from before. So what the
optimizer makes of a gradient (momentum, Adam's scaling) is part of what is combined; its state stays the rank's own.

Called by the thread that runs step.
"""

from __future__ import annotations

from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple, Union

import torch

import ddl
from ddl import clock
from ddl.adapter.adasum import PreparedAdasum
from ddl.adapter.step_record import note_step
from ddl_torch.gradients.same_model import check_parameter, check_same_on_all_ranks

__all__ = ["DeltaReducer"]

_WIDE = (torch.float64, torch.complex128)


class DeltaReducer:
    """The deltas of one optimizer; with the methods of ``GradientReducer`` that an optimizer calls."""

    def __init__(self, communicator: ddl.Communicator) -> None:
        self.communicator = communicator
        self.synchronized = self.asked = False  # there is no average that could be made a second time
        self.backward_passes_per_step = 1  # gradients add up where autograd puts them, and step() says when
        self._named: List[Tuple[str, torch.Tensor]] = []
        self._moving: List[torch.Tensor] = []  # parameters that have a place in ``_deltas``
        self._deltas: List[_Deltas] = []
        self._outermost: Optional[Dict[str, Any]] = None  # keyword arguments of the step under way
        self._steps, self._bytes, self._seconds_waiting = 0, 0, 0.0

    @property
    def compression(self) -> str:
        """See ``DistributedOptimizer.compression``: steps are not compressed."""
        return "float32"

    @property
    def names(self) -> Dict[torch.Tensor, str]:
        """The name of each parameter."""
        return {parameter: name for name, parameter in self._named}

    def add(self, parameters: Sequence[Tuple[str, torch.Tensor]]) -> None:
        """Take parameters on; the first step that finds them moving gives them a place."""
        for name, parameter in parameters:
            check_parameter(name, parameter)
        self._named += parameters

    def lay_out(self) -> None:
        """Give a place to every parameter that requires a gradient. Collective if these are others than before."""
        moving = [(name, p) for name, p in self._named if p.requires_grad]
        if list(map(id, self._moving)) == [id(p) for _, p in moving]:
            return
        check_same_on_all_ranks(self.communicator, ["op=Adasum"], moving)
        self._moving = [p for _, p in moving]
        wide, narrow = ([p for p in self._moving if (p.dtype in _WIDE) == is_wide] for is_wide in (True, False))
        self._deltas = [_Deltas(self.communicator, tensors) for tensors in (wide, narrow) if tensors]

    def before_step(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Tuple[Any, Any]]:
        """Keep the weights that all ranks have. A closure evaluates the rank's own loss."""
        if self._outermost is not None:
            return None
        if self.communicator.size > 1:
            self.lay_out()
        for deltas in self._deltas:
            deltas.keep()
        self._outermost = dict(kwargs)
        return args, self._outermost

    def after_step(self, kwargs: Dict[str, Any]) -> None:
        """Combine the deltas. Collective, blocking.

        A step may call its base class's step, and come here twice: the rest of it is then a second delta.
        """
        if self._outermost is None:
            return
        start = clock.now()
        for deltas in self._deltas:
            deltas.combine()
            self._bytes += deltas.bytes
        self._seconds_waiting += clock.now() - start
        if kwargs is self._outermost:
            self._outermost = None
            self._steps += 1
            note_step()
        else:
            for deltas in self._deltas:
                deltas.keep()

    def step_failed(self) -> None:
        """Take back what a step that ended with an error has done to the weights, which all ranks have alike again."""
        if self._outermost is not None:
            self._outermost = None
            for deltas in self._deltas:
                deltas.take_back()

    def go_over_to(self, communicator: ddl.Communicator, *, afresh: bool) -> None:
        """Go on with other ranks; the next step gives parameters their places."""
        self.communicator, self._moving, self._deltas, self._outermost = communicator, [], [], None

    def release(self) -> None:
        """Leave the parameters to another reducer: nothing hangs on them."""

    def restart(self) -> None:
        """Do nothing: steps are combined where they are taken, so nobody counts them."""

    def synchronize(self) -> None:
        """Do nothing: gradients are the rank's own, and may be changed at any time before the step."""

    def skipping(self) -> NoReturn:
        """Refuse: a step that is not combined would leave the ranks with different weights."""
        raise ddl.InvalidState(
            "skip_synchronize() is not possible with op=ddl.Adasum, which combines the steps themselves: leave it out, "
            "synchronize() too; gradients may be changed at any time before step()"
        )

    def discard(self) -> None:
        """Do nothing: gradients that were not used in a step are nobody else's concern."""

    def statistics(self) -> Dict[str, Union[int, float]]:
        """Return counts since the beginning; see ``DistributedOptimizer.statistics``."""
        return {"steps": self._steps, "seconds_waiting": self._seconds_waiting, "bytes": self._bytes}


class _Deltas:
    """The deltas of some parameters, one after the other in shared memory: as float32, or as float64 if they are."""

    def __init__(self, communicator: ddl.Communicator, parameters: Sequence[torch.Tensor]) -> None:
        lengths = [p.numel() * (2 if p.is_complex() else 1) for p in parameters]
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        array = ddl.empty(sum(lengths), "float64" if parameters[0].dtype in _WIDE else "float32")
        self.bytes = array.nbytes
        self._parameters = parameters
        self._kept: List[torch.Tensor] = []
        self._combine = PreparedAdasum(communicator, array, starts=starts)
        flat = torch.from_numpy(array)
        self._views = [_view_for(p, flat[i : i + n]) for p, i, n in zip(parameters, starts, lengths)]

    def keep(self) -> None:
        """Remember the weights, on the CPU, where the deltas are."""
        self._kept = [p.detach().to("cpu", copy=True) for p in self._parameters]

    @torch.no_grad()
    def take_back(self) -> None:
        """Set the weights to those that were kept."""
        for p, kept in zip(self._parameters, self._kept):
            p.copy_(kept)

    @torch.no_grad()
    def combine(self) -> None:
        """Set the weights to those that were kept, plus the Adasum of all ranks' deltas."""
        for p, kept, delta in zip(self._parameters, self._kept, self._views):
            delta.copy_(p).sub_(kept)
        self._combine()
        for p, kept, delta in zip(self._parameters, self._kept, self._views):
            p.copy_(delta.add_(kept))
        self._kept = []


def _view_for(parameter: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    if not parameter.is_complex():
        return flat.view(parameter.shape)
    return torch.view_as_complex(flat.view(*parameter.shape, 2))
