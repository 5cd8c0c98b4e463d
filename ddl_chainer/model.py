"""What DDL does with a model: one operation averages its gradients, and another gives all ranks its parameters."""

from __future__ import annotations

import itertools
import zlib
from typing import Any, Iterable, List, Optional, Sequence, Tuple

import numpy as np

import ddl
from ddl.adapter.consistency import check_consistent
from ddl.adapter.fused_arrays import Fused, broadcast_many_
from ddl.adapter.same_step import StepNumber
from ddl.adapter.step_record import note_step

__all__ = ["AverageGradients", "Gradients", "broadcast", "broadcast_parameters", "packed", "parameters_of"]


def parameters_of(model: Any) -> List[Tuple[str, Any]]:
    """Return names and parameters in an order that ranks agree on: those with arrays, once if they have two names."""
    named = {id(parameter): (name, parameter) for name, parameter in sorted(model.namedparams(False), reverse=True)}
    for name, parameter in named.values():
        if not isinstance(parameter.array, np.ndarray):
            kind = type(parameter.array).__name__
            raise ddl.InvalidArgument(f"parameter {name} is a {kind}, no numpy array: call model.to_device('@numpy')")
    return list(named.values())


def packed(array: np.ndarray) -> np.ndarray:
    """Return the array if it can be reduced where it is, else a copy of it."""
    return array if array.flags.c_contiguous and array.flags.writeable else np.array(array, order="C")


_ADVICE = (
    "An exception has ended an update on a rank that went on afterwards, so the ranks' weights differ. Go on from a "
    "checkpoint, in a new job; or broadcast the weights: docs/chainer.md says how"
)
_hook_numbers = itertools.count()


class Updates:
    """Counts updates of parameters that have ended: a hook that Chainer calls after each update.

    An optimizer counts an update when it begins, so that its ``t`` says nothing of one that an exception has ended.
    A step has ended when as many parameters have been updated as had their gradients averaged for it.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._left = 0  # updates until the end of the step
        self._name = f"ddl_chainer {next(_hook_numbers)}"

    def __call__(self, rule: Any, parameter: Any) -> None:
        self.ended += 1
        self._left -= 1
        if self._left == 0:
            note_step()

    def begin_step(self, parameters: Iterable[Any]) -> None:
        """Count updates of ``parameters`` from now on, if they are not counted yet; a step is to update them."""
        self._left = 0  # of a step that was left out
        for parameter in parameters:
            hookable = getattr(parameter.update_rule, "_hookable", None)
            if hookable is not None:  # add_hook fails where the rule is a copy of one that has the hook
                hookable._post_update_hooks[self._name] = self
                self._left += parameter.update_rule.enabled


class Gradients:
    """Averages the gradients of parameters over a communicator, in place. Their number and shapes may change.

    Raises ``InvalidState``, on all ranks, if these have ended different numbers of updates since the last ``restart``.
    """

    def __init__(self, communicator: ddl.Communicator) -> None:
        self._communicator = communicator
        self._updates = Updates()
        self._kinds: List[Any] = []
        self._fused: Optional[Fused] = None

    def restart(self) -> None:
        """Count updates anew: all ranks have the same weights now."""
        self._updates.ended = 0

    def go_over_to(self, communicator: ddl.Communicator) -> None:
        """Average over ``communicator`` from now on, whose ranks have the same weights."""
        self._communicator, self._fused = communicator, None
        self.restart()

    def average(self, parameters: Sequence[Any]) -> None:
        """Average the gradients of ``parameters``, which all have one. Collective, blocking."""
        self._updates.begin_step(parameters)
        arrays, places = [], set()
        for parameter in parameters:
            gradient = packed(parameter.grad)
            place = gradient.__array_interface__["data"][0]
            if place in places:  # those of a and b, where the model has a + b: Chainer makes one array
                gradient = gradient.copy()
            if gradient is not parameter.grad:
                parameter.grad = gradient
            arrays.append(gradient)
            places.add(place)
        kinds = [(array.shape, array.dtype) for array in arrays]
        if self._fused is None or kinds != self._kinds:
            self._fused, self._kinds = Fused(self._communicator, arrays, name="gradients", advice=_ADVICE), kinds
        ended = self._updates.ended
        self._fused(arrays, StepNumber(ended, f"{ended} updates of a parameter have ended"))


class AverageGradients:
    """A hook of optimizers that makes gradients averages over the ranks, so that all ranks take the same step.

    Collective: all ranks update equally often. It comes before other hooks (clipping, decay), which then see averages.
    A parameter without a gradient counts as zeros, as Chainer has it. When a rank updates first, parameters are
    compared to the bit. Raises, from ``optimizer.update``, ``InvalidArgument`` if a hook comes before it, and on all
    ranks if parameters differ; ``InvalidState``, on all ranks, if an exception has ended an earlier update on one of
    them; ``CollectiveMismatch``, ``PeerLost`` and the like. ``communicator``: default, all ranks, also where these come
    and go; parameters are compared again then.

    >>> optimizer.add_hook(ddl_chainer.AverageGradients())
    """

    name, timing, call_for_each_param = "AverageGradients", "pre", False

    def __init__(self, communicator: Optional[ddl.Communicator] = None) -> None:
        self._communicator = ddl.world() if communicator is None else communicator
        self._of_all = self._communicator is ddl.world()
        self._gradients = Gradients(self._communicator)
        self._checked = False

    def __call__(self, optimizer: Any) -> None:
        if self._of_all and self._communicator is not ddl.world():  # ranks have been lost, or have joined
            self._communicator, self._checked = ddl.world(), False
            self._gradients.go_over_to(self._communicator)
        named = parameters_of(optimizer.target)
        if not self._checked:
            first, hook = next(iter(optimizer._hookable._pre_update_hooks.items()))
            if hook is not self:
                text = f"the hook {first!r} comes before it, and sees gradients of one rank; add AverageGradients first"
                raise ddl.InvalidArgument(f"{self._communicator.who} AverageGradients: {text}")
            lines = [f"{name} {x.dtype}{x.shape} of checksum {zlib.crc32(x.array.tobytes())}" for name, x in named]
            advice = "Call ddl_chainer.broadcast_parameters(model) before, when all parameters have arrays."
            check_consistent(self._communicator, "AverageGradients", lines, advice)
            self._checked = True
        self._gradients.average([parameter for _, parameter in named])
        optimizer.check_nan_in_grads()  # for dynamic loss scaling: so that all ranks skip a step, or none


def broadcast(communicator: ddl.Communicator, arrays: List[np.ndarray], root: int) -> None:
    """Overwrite the arrays with those of rank ``root``. Collective, blocking."""
    copies = [packed(array) for array in arrays]
    broadcast_many_(copies, root=root, communicator=communicator)
    for array, copy in zip(arrays, copies):
        if array is not copy:
            array[...] = copy


def broadcast_parameters(model: Any, root: int = 0, communicator: Optional[ddl.Communicator] = None) -> None:
    """Give all ranks the parameters of rank ``root``, and its persistent arrays (BatchNormalization's averages).

    Collective, blocking. ``model``: a ``chainer.Link``. A parameter that has no array yet, as its size is not known, is
    left out: call the model once before. Raises ``InvalidArgument``, on all ranks, if types or shapes differ.
    """
    arrays = [parameter.array for _, parameter in parameters_of(model)]
    for link in model.links():
        values = (link.__dict__[name] for name in sorted(link._persistent))
        arrays += [value for value in values if isinstance(value, np.ndarray)]
    broadcast(ddl.world() if communicator is None else communicator, arrays, root)
