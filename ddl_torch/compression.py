"""``compression=`` of ``DistributedOptimizer``: what it may be, and ``Compression``, the namespace of the choices.

A form in which DDL's core writes numbers shorter between hosts is a *wire* (``ddl.adapter.compression``); PowerSGD is
an algorithm of its own (gradients/powersgd.py). Casts of single tensors, as Horovod's ``allreduce(compression=…)``
takes them, are ``compress`` and ``decompress``. Which to take: docs/compression.md.

A ``Compressor`` of the user's own compresses each gradient by itself, with two calls of Python for each parameter. The
choices of ``Compression`` are faster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple, Type, Union

import torch

import ddl
from ddl.adapter import compressor
from ddl.adapter.compressor import Compressor, NoneCompressor
from ddl.text.spelling import did_you_mean

__all__ = ["Cast", "Compression", "CompressionLike", "Compressor", "FP16Compressor", "NoneCompressor", "UserCompressor"]
__all__ += ["PowerSGD", "Wire", "casting", "parse"]


@dataclass(frozen=True)
class Wire:
    """Gradients of float32 are written as ``name`` between hosts; "auto": as what is measured to be fastest."""

    name: str


@dataclass(frozen=True)
class Cast(Wire):
    """A wire that is another type, ``dtype`` (None: none), so that a single tensor can be cast to it and back."""

    dtype: Optional[torch.dtype] = None

    def __repr__(self) -> str:
        return f"Compression.{self.name}"

    def compress(self, tensor: torch.Tensor) -> Tuple[torch.Tensor, Optional[torch.dtype]]:
        """Return ``tensor`` as ``dtype`` if it is of floating point, and what ``decompress`` needs."""
        if self.dtype is None or not tensor.is_floating_point():
            return tensor, None
        return tensor.to(self.dtype), tensor.dtype

    def decompress(self, tensor: torch.Tensor, ctx: Optional[torch.dtype]) -> torch.Tensor:
        """Return ``tensor`` in the type that it had before ``compress`` returned ``ctx``."""
        return tensor if ctx is None else tensor.to(ctx)


@dataclass(frozen=True)
class UserCompressor:
    """A compression of the user's: ``compressor`` has ``compress`` and ``decompress`` (see ``Compressor``)."""

    name: str
    compressor: Any = field(repr=False, compare=False)


@dataclass(frozen=True)
class PowerSGD:
    """Gradients of matrices (and of what has more dimensions) are averaged as products of rank ``rank``.

    What a product cannot express is kept and added to the next gradient. Source: Vogels et al., NeurIPS 2019.
    """

    rank: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or self.rank < 1:
            raise ddl.InvalidArgument(f"PowerSGD: rank={self.rank!r} must be a whole number, 1 or more")


class Compression:
    """What ``DistributedOptimizer(compression=…)`` takes; the names of these, as strings, do as well."""

    none = Cast("none")
    fp16 = Cast("fp16", torch.float16)
    bf16 = Cast("bf16", torch.bfloat16)
    int8 = Wire("int8")
    powersgd = PowerSGD()
    auto = Wire("auto")


class FP16Compressor(Compressor):
    """Horovod's name of ``Compression.fp16``."""

    compress = staticmethod(Compression.fp16.compress)
    decompress = staticmethod(Compression.fp16.decompress)


CompressionLike = Union[None, str, Wire, PowerSGD, Type[Compressor], Compressor]

_NAMED: Dict[str, Union[Wire, PowerSGD]] = {
    name: choice for name, choice in vars(Compression).items() if isinstance(choice, (Wire, PowerSGD))
}


def casting(compression: Any) -> Any:
    """Return what writes single tensors: one of ``Compression`` or its name, or Horovod's ``Compressor``.

    Raises ``InvalidArgument`` for what needs the gradients of a whole step, as int8 and PowerSGD do.
    """
    return compressor.casting(compression, {n: choice for n, choice in _NAMED.items() if isinstance(choice, Cast)})


def parse(compression: Any) -> Union[Wire, PowerSGD, UserCompressor]:
    """Return the choice that ``compression`` names or is. Raises ``InvalidArgument`` for anything else."""
    if compression is None:
        return Compression.none
    if isinstance(compression, (Wire, PowerSGD)):
        return compression
    if isinstance(compression, str) and compression in _NAMED:
        return _NAMED[compression]
    for theirs, choice in ((NoneCompressor, Compression.none), (FP16Compressor, Compression.fp16)):
        if compression is theirs:
            return choice
    if compressor.has_both_ways(compression):
        kind = compression if isinstance(compression, type) else type(compression)
        return UserCompressor(kind.__qualname__, compression)
    names = ", ".join(repr(name) for name in _NAMED)
    hint = did_you_mean(compression, _NAMED) if isinstance(compression, str) else ""
    raise ddl.InvalidArgument(
        f"compression={compression!r}{hint}; choose one of {names}, or pass ddl_torch.PowerSGD(rank=…), or what has "
        "compress(tensor) and decompress(tensor, ctx)"
    )
