"""``public_names``: lets ``dir`` show only the public names of a module, and no imports."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

__all__ = ["public_names"]


def public_names(module: Dict[str, Any]) -> Callable[[], List[str]]:
    """Return the ``__dir__`` of the module that has these globals: ``__all__``, and what Python itself puts there."""
    return lambda: sorted({*module["__all__"], *(name for name in module if name.startswith("__"))})
