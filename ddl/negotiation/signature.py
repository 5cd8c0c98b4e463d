"""``Signature``: what ranks must agree on before an operation runs."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, List, NamedTuple, Sequence, Tuple, Type, TypeVar

__all__ = ["ANY", "Signature", "checked"]

_T = TypeVar("_T")

ANY = -1  #: in a shape: may differ by rank


class Signature(NamedTuple):
    """An operation but for its data. ``tensors``: type and shape of each tensor; ``detail``: its operator, its root."""

    verb: str
    tensors: Tuple[Tuple[str, Tuple[int, ...]], ...] = ()
    detail: str = ""

    def text(self, of: int = 0) -> str:
        """Return it for people: ``allreduce(float32 of shape 3x4, average)``; of many tensors that of number ``of``."""
        shapes = [f"{dtype} of shape {_shape(shape)}" for dtype, shape in self.tensors]
        if len(shapes) > 3:
            shown = [f"tensor {of}: {shapes[of]}"] if 1 < of < len(shapes) else shapes[:2]
            shapes = [*shown, f"{len(shapes) - len(shown)} more"]
        return f"{self.verb}({', '.join([*shapes, *([self.detail] if self.detail else [])])})"

    def differs(self, other: Signature) -> int:
        """Return the number of the first tensor that differs; 0 if none does."""
        pairs = enumerate(zip_longest(self.tensors, other.tensors))
        return next((number for number, (own, other) in pairs if own != other), 0)

    def plain(self) -> List[Any]:
        """Return it as plain data."""
        return [self.verb, [[dtype, list(shape)] for dtype, shape in self.tensors], self.detail]

    @classmethod
    def parse(cls, plain: Sequence[Any]) -> Signature:
        """Undo ``plain``, which came from another rank. TypeError or ValueError if it is nothing of the kind."""
        verb, tensors, detail = plain
        of_tensors = tuple((checked(dtype, str), tuple(checked(n, int) for n in shape)) for dtype, shape in tensors)
        return cls(checked(verb, str), of_tensors, checked(detail, str))


def checked(value: Any, kind: Type[_T]) -> _T:
    """Return ``value``; TypeError unless it is a ``kind``."""
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.100} is no {kind.__name__}")
    return value


def _shape(shape: Tuple[int, ...]) -> str:
    return "x".join("any" if n == ANY else str(n) for n in shape) or "()"
