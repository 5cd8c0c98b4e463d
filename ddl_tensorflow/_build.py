"""Finds the op of call_op.cc for the TensorFlow that is installed: the wheel's, or one compiled here, once a version.

Wheels have it for some versions (release/tensorflow_ops.py). For others ``ddl/adapter/compiled.py`` compiles it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import tensorflow as tf

from ddl.adapter.compiled import BuildError, compiled

__all__ = ["BuildError", "op_library", "prebuilt"]

_SOURCE = Path(__file__).with_name("call_op.cc")
_PREBUILT = Path(__file__).with_name("prebuilt")


def op_library() -> Path:
    """Return the op, compiled now if it is not there yet. Raises ``BuildError``."""
    return prebuilt(_PREBUILT) or compiled(
        _SOURCE,
        framework="TensorFlow",
        version=tf.__version__,
        key=tf.version.GIT_VERSION,
        flags=tf.sysconfig.get_compile_flags(),
        link_flags=tf.sysconfig.get_link_flags(),
    )


def prebuilt(folder: Path) -> Optional[Path]:
    """Return the op in a wheel's folder that fits the TensorFlow that is installed, if there is one.

    It fits if it was compiled for this version, with the flags that this TensorFlow asks for: they choose layouts.
    """
    library = folder / f"call_op-{tf.__version__}.so"
    flags = library.with_suffix(".flags")
    asked = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    return library if flags.exists() and flags.read_text(encoding="utf-8").split() == asked else None
