"""Started by its path (``python …/worker --library mpi …``), by a Python that may not have DDL installed.

So that the modules here can still name one another relatively, their folder is loaded as a package by itself.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_NAME = "ddl_bench_worker"


def _load() -> None:
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    if not __package__:
        sys.path.pop(0)  # Python put this folder there; its modules must not hide others of the same names
        _load()
    importlib.import_module((__package__ or _NAME) + ".loop").main()
