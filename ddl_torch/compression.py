"""How tensors are written while they are all-reduced, as Horovod's ``Compression``."""

from __future__ import annotations

from typing import Any, Tuple

import torch

__all__ = ["Compression"]


class _None:
    """As they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        """Return what is sent, and what ``decompress`` has to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Undo ``compress``."""
        return tensor


class Compression:
    """The choices."""

    none = _None
