"""Run by Python when it starts, where ``ddlrun --jax`` has put this folder on PYTHONPATH: tells JAX about DDL.

When a program imports JAX, ``ddl_jax`` is imported right after it, so that ``jax.distributed.initialize()`` finds the
job. Nothing else happens. A sitecustomize that this one hides is run, too.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import runpy
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE)


class _AfterJax(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``jax`` once, as others find it, and imports ``ddl_jax`` when it has been loaded."""

    def __init__(self) -> None:
        self._loader: Any = None

    def find_spec(self, name: str, path: Any, target: Any = None) -> Optional[ModuleSpec]:
        if name != "jax":
            return None
        sys.meta_path.remove(self)
        runpy.run_path(os.path.join(_PACKAGE, "_library.py"))
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        module: Optional[ModuleType] = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        importlib.import_module("ddl_jax")


def _run_hidden() -> None:
    own = sys.modules.pop(__name__)
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or os.getcwd()) != _HERE]
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    sys.modules.setdefault(__name__, own)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, _AfterJax())
    _run_hidden()
