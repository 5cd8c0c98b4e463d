"""What ``compression=`` may be where single tensors are written, in all frameworks; Horovod's base class for it."""

from __future__ import annotations

from typing import Any, Mapping, Tuple

from ddl.errors import InvalidArgument
from ddl.text.spelling import did_you_mean

__all__ = ["Compressor", "NoneCompressor", "casting", "has_both_ways"]


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


def has_both_ways(compression: Any) -> bool:
    """Return whether it has ``compress`` and ``decompress``."""
    return all(callable(getattr(compression, name, None)) for name in ("compress", "decompress"))


def casting(compression: Any, named: Mapping[str, Any]) -> Any:
    """Return what writes single tensors: what ``compression`` is, or what it names in ``named``; None is "none".

    Raises ``InvalidArgument`` for anything else: also for what needs the gradients of a whole step, as int8 does.
    """
    if compression is None:
        return named["none"]
    if isinstance(compression, str) and compression in named:
        return named[compression]
    if has_both_ways(compression):
        return compression
    hint = did_you_mean(compression, named) if isinstance(compression, str) else ""
    names = ", ".join(map(repr, named))
    raise InvalidArgument(
        f"compression={compression!r} is not for single tensors{hint}; pass {names}, the same of Compression "
        "(Compression.fp16), or what has compress(tensor) and decompress(tensor, ctx)"
    )
