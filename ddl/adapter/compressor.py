"""Horovod's base class for compressions of a user's own, whatever the framework: adapters have it as ``Compressor``."""

from __future__ import annotations

from typing import Any, Tuple

__all__ = ["Compressor", "NoneCompressor"]


class Compressor:
    """The base class of Horovod for compressions of your own: static (or class) methods that do both ways.

    The verbs and the optimizers take a class or an object that has both methods. They reduce what ``compress`` returns,
    in its type, and return (or step by) what ``decompress`` makes of that. So shapes and types of what is reduced must
    be alike on all ranks, and a sum (or average) of compressed tensors must make sense.

    >>> class Halves(Compressor):
    ...     @staticmethod
    ...     def compress(tensor):
    ...         return tensor / 2, None
    ...
    ...     @staticmethod
    ...     def decompress(tensor, ctx):
    ...         return tensor * 2
    """

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        """Return what is reduced in place of ``tensor``, and what ``decompress`` needs to know of it."""
        raise NotImplementedError("a Compressor defines compress(tensor) and decompress(tensor, ctx)")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the result that the reduced ``tensor`` stands for; ``ctx`` is from this rank's ``compress``."""
        raise NotImplementedError("a Compressor defines compress(tensor) and decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """Horovod's name of ``Compression.none``: tensors are reduced as they are."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor
