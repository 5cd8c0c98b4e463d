"""Where versions of PyTorch differ: the only file of the adapter that may ask which one this is."""

from __future__ import annotations

import torch

__all__ = ["mark_written"]


def mark_written(tensor: torch.Tensor) -> None:
    """Tell autograd that the memory of ``tensor`` was overwritten behind its back.

    Autograd then refuses to use an old value that it had kept for a backward pass, instead of computing nonsense.
    """
    increment = getattr(torch.autograd.graph, "increment_version", None)  # public from 2.1 on
    if increment is None:
        torch._C._increment_version(tensor)
    elif not tensor.is_inference():  # those have no version
        increment(tensor)
