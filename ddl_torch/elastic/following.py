"""The state of a training as bytes, for ranks that join while the others train: ddl/_comm/state_source.py sends it.

The state is the parameters and what the optimizer keeps of them. A step brings the averages and the settings of the
optimizer. From the same state and these, the optimizer comes to the same bits on every rank.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import torch

from ddl.adapter.generation import Piece, digests
from ddl_torch.optimizer import DistributedOptimizer
from ddl_torch.state import _load, _put_together, _take_apart, as_bytes, parameters_of

__all__ = ["TrainingState"]

Settings = List[Dict[str, Any]]


class TrainingState:
    """The state of ``model`` and ``optimizer``. Nothing here is collective."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._model = model
        self._parameters = list(dict.fromkeys([*model.parameters(), *parameters_of(optimizer)]))

    def size(self) -> int:
        """Return the bytes of the parameters, and of what the optimizer keeps of them."""
        state = [value for kept in self._optimizer.state.values() for value in kept.values()]
        tensors = [*self._parameters, *(value for value in state if isinstance(value, torch.Tensor))]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def buffers(self) -> Dict[str, Any]:
        """Return what the model has besides parameters, by name. Ranks may differ in it while they train."""
        known = {id(parameter) for parameter in self._parameters}
        state = self._model.state_dict(keep_vars=True)
        return {name: value for name, value in state.items() if id(value) not in known}

    @property
    def settings(self) -> Settings:
        """The settings of the optimizer's groups: learning rates and the like."""
        return [{key: value for key, value in g.items() if key != "params"} for g in self._optimizer.param_groups]

    @settings.setter
    def settings(self, settings: Settings) -> None:
        for group, values in zip(self._optimizer.param_groups, settings):
            group.update(values)

    def read(self) -> Tuple[Any, List[Piece]]:
        """Return what describes the state, and its pieces."""
        tensors: List[torch.Tensor] = []
        described = _take_apart(self._optimizer.state_dict(), tensors)
        return described, [_piece(tensor) for tensor in [*self._parameters, *tensors]]

    def load(self, described: Any, data: np.ndarray) -> None:
        """Take over a state that was read on another rank."""
        reader = _Reader(data)
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.copy_(reader.tensor(list(parameter.shape), parameter.dtype))
        _load(self._optimizer, _put_together(described, reader.tensor))

    def read_step(self) -> Tuple[Any, List[Piece]]:
        """Return what describes the step that the optimizer is about to take, and its averages."""
        averages = [parameter.grad for parameter in parameters_of(self._optimizer)]
        given = [average is not None for average in averages]
        described = {"settings": self.settings, "given": given}
        return described, [_piece(average) for average in averages if average is not None]

    def step(self, described: Any, data: np.ndarray) -> None:
        """Take a step that was read on another rank."""
        reader = _Reader(data)
        self.settings = described["settings"]
        trained = parameters_of(self._optimizer)
        for parameter, given in zip(trained, described["given"]):
            average = reader.tensor(list(parameter.shape), parameter.dtype) if given else None
            parameter.grad = None if average is None else average.to(parameter.device)
        with contextlib.ExitStack() as stack:
            if isinstance(self._optimizer, DistributedOptimizer):
                stack.enter_context(self._optimizer.skip_synchronize())
            self._optimizer.step()
        for parameter in trained:
            parameter.grad = None

    def digests(self, wanted: Sequence[int], parts: int) -> List[str]:
        """Return the digests of the stripes ``wanted`` of ``parts``."""
        return digests(self.read()[1], wanted, parts)


def _piece(tensor: torch.Tensor) -> Piece:
    return Piece(tensor.numel() * tensor.element_size(), lambda: as_bytes(tensor.detach().cpu()).numpy())


class _Reader:
    """Tensors from bytes, one after the other. They share the bytes."""

    def __init__(self, data: np.ndarray) -> None:
        self._data = data
        self._at = 0

    def tensor(self, shape: List[int], dtype: torch.dtype) -> torch.Tensor:
        """Return the next one."""
        empty = torch.empty(shape, dtype=dtype, device="meta")
        if not empty.numel():
            return torch.empty(shape, dtype=dtype)
        tensor = torch.frombuffer(self._data, dtype=dtype, count=empty.numel(), offset=self._at)
        self._at += empty.numel() * empty.element_size()
        return tensor.reshape(shape)
