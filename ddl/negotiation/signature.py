"""``Signature``: what ranks must agree on before an operation runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Sequence, Tuple

__all__ = ["ANY", "Signature"]

ANY = -1  #: in a shape: may differ by rank


@dataclass(frozen=True)
class Signature:
    """An operation but for its data. ``tensors``: type and shape of each tensor; ``detail``: its operator, its root."""

    verb: str
    tensors: Tuple[Tuple[str, Tuple[int, ...]], ...] = ()
    detail: str = ""

    def text(self) -> str:
        """Return it for people: ``allreduce(float32 of shape 3x4, average)``."""
        shapes = [f"{dtype} of shape {_shape(shape)}" for dtype, shape in self.tensors]
        if len(shapes) > 3:
            shapes = [*shapes[:2], f"{len(shapes) - 2} more"]
        return f"{self.verb}({', '.join([*shapes, *([self.detail] if self.detail else [])])})"

    def plain(self) -> List[Any]:
        """Return it as plain data."""
        return [self.verb, [[dtype, list(shape)] for dtype, shape in self.tensors], self.detail]

    @classmethod
    def parse(cls, plain: Sequence[Any]) -> Signature:
        """Undo ``plain``."""
        verb, tensors, detail = plain
        return cls(verb, tuple((dtype, tuple(shape)) for dtype, shape in tensors), detail)


def _shape(shape: Tuple[int, ...]) -> str:
    return "x".join("any" if n == ANY else str(n) for n in shape) or "()"
