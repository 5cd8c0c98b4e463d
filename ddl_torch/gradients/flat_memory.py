"""``FlatMemory``: a flat tensor that is all-reduced again and again, with the least overhead where it lies.

On the CPU it is in shared memory, and the calls are prepared. On a GPU it is a tensor like any other; each call names
the stream that is current then.

PyTorch can give a storage other memory, for all tensors that share it: when one of them is put into a queue of
``torch.multiprocessing``, or the storage is resized. What the core adds up stays where it was, so users ask ``moved``.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import numpy as np
import torch
from torch.utils import dlpack

import ddl
from ddl_torch._streams import GPU_TYPES, settle

__all__ = ["FlatMemory"]


class FlatMemory:
    """``tensor``: ``length`` elements of ``dtype`` on ``device``, all zeros at first."""

    def __init__(self, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.on_gpu = device.type in GPU_TYPES
        self._array: Optional[np.ndarray] = None
        if self.on_gpu:
            self.tensor = torch.zeros(length, dtype=dtype, device=device)
            settle(device)  # it may be written on any stream
            self._alias = dlpack.from_dlpack(dlpack.to_dlpack(self.tensor))  # type: ignore[attr-defined]
        else:
            self._array = ddl.empty(length * dtype.itemsize, "uint8")
            self._array.fill(0)
            self.tensor = torch.from_numpy(self._array).view(dtype)
        self._prepared: Dict[str, Callable[[], object]] = {}  # by name
        self._look_at_tensor()

    def _look_at_tensor(self) -> None:
        """Find what the core adds up: the same memory, of numbers that it knows. numpy has no bfloat16."""
        dtype = self.tensor.dtype
        self._address = self.tensor.data_ptr()
        self._numbers = (torch.view_as_real(self.tensor) if dtype.is_complex else self.tensor).reshape(-1)
        self._wire: Any = self._numbers if self.on_gpu or dtype == torch.bfloat16 else self._numbers.numpy()

    @property
    def moved(self) -> bool:
        """Whether PyTorch has given the storage of ``tensor`` other memory, which nobody adds up."""
        return self.tensor.data_ptr() != self._address

    def come_back(self) -> None:
        """Let ``tensor`` be another one, in the memory where it was at first; on the CPU alone."""
        self.tensor = self.values()
        self._look_at_tensor()

    @property
    def float32(self) -> bool:
        """Whether it is of float32, or of complex numbers of that, which alone can be written shorter on the wire."""
        return self._numbers.dtype == torch.float32

    def values(self) -> torch.Tensor:
        """Return the memory as a tensor that PyTorch knows nothing of: it counts as no user, and no writer, of it."""
        return self._alias if self._array is None else torch.from_numpy(self._array).view(self.tensor.dtype)

    def reduction(
        self,
        communicator: ddl.Communicator,
        op: ddl.ReduceOp,
        name: str,
        *,
        start: bool,
        numbers: Optional[int] = None,
        residual: Optional[np.ndarray] = None,
    ) -> Callable[[], object]:
        """Return what all-reduces the memory, or its first ``numbers`` numbers, and returns when that has ended.

        ``start``: it begins now, in the background. ``residual``: see ``ddl.Communicator.allreduce_async_``.
        """
        if start or self.on_gpu:
            work = self._start(communicator, op, name, numbers, residual)
            return work.wait
        if name not in self._prepared:
            array = self._first(self._wire, numbers)
            self._prepared[name] = communicator.prepare_allreduce(array, op=op, name=name, residual=residual)
        return self._prepared[name]

    def forget_calls(self) -> None:
        """Drop what was prepared: its communicator is over."""
        self._prepared.clear()

    @staticmethod
    def _first(memory: Any, numbers: Optional[int]) -> Any:
        return memory if numbers is None else memory[:numbers]  # a tensor of its own would count as a user

    def _start(
        self,
        communicator: ddl.Communicator,
        op: ddl.ReduceOp,
        name: str,
        numbers: Optional[int],
        residual: Optional[np.ndarray],
    ) -> ddl.Work:
        memory = self._first(self._wire, numbers)
        return communicator.allreduce_async_(memory, op=op, name=name, residual=residual)
