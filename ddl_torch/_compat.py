"""Where versions of PyTorch differ: the only file of the adapter that may ask which one this is."""

from __future__ import annotations

import torch

__all__ = ["mark_written"]


def mark_written(tensor: torch.Tensor) -> None:
    """Tell autograd that the memory of ``tensor`` was overwritten behind its back.

    Autograd then refuses to use an old value that it had kept for a backward pass, instead of computing nonsense.
    """
    if tensor.is_inference():  # has no version
        return
    increment = getattr(torch.autograd.graph, "increment_version", torch._C._increment_version)  # the older name
    increment(tensor)
