"""XLA, which compiles a part of a graph as a whole, cannot compile a call of DDL's, which waits for other processes.

Where TensorFlow would say "Detected unsupported operations", users get ``ddl.InvalidArgument`` with what to change:
``refuse`` when a function is traced for XLA, ``compiled_later`` for one that was traced before and is compiled later.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, Optional

import tensorflow as tf

import ddl
from ddl.adapter.rank_prefix import naming_rank
from ddl_tensorflow._errors import both, recognise

__all__ = ["ADVICE", "compiled_later", "refuse", "settle"]

log = logging.getLogger("ddl")

ADVICE = (
    "XLA cannot compile a collective of DDL's: leave out jit_compile=True of the tf.function around it (what needs no "
    "other rank may be a compiled function of its own), and in Keras pass jit_compile=False to compile()"
)


@functools.cache
def _in_cluster() -> Optional[Callable[[Any], bool]]:
    """Return what says whether a graph is traced for XLA; None if TensorFlow has it no more: see compiled_later."""
    try:
        from tensorflow.python.ops import control_flow_util
    except ImportError:
        return None
    in_context: Optional[Callable[[Any], bool]] = getattr(control_flow_util, "GraphOrParentsInXlaContext", None)
    return in_context


@naming_rank
def refuse() -> None:
    """Raise ``InvalidArgument`` if what is traced now is for XLA."""
    if tf.executing_eagerly():
        return
    in_cluster = _in_cluster()
    if in_cluster is not None and in_cluster(tf.compat.v1.get_default_graph()):
        raise ddl.InvalidArgument(ADVICE)


@functools.cache
def compiled_later() -> None:
    """Let TensorFlow's own refusal of our op be ``ddl.InvalidArgument`` that begins with the advice."""
    theirs = tf.errors.InvalidArgumentError
    ours = type(
        "InvalidArgument",
        (both(ddl.InvalidArgument, theirs),),
        {"__module__": "ddl.errors", "__init__": _advise, "__doc__": ddl.InvalidArgument.__doc__},
    )

    def ours_of(cls: Any, text: str) -> Any:
        return ours if cls is theirs and "DdlCall" in text and "unsupported operations" in text else None

    recognise(ours_of)


def _advise(self: Any, node_def: Any, op: Any, message: Any, *args: Any) -> None:
    tf.errors.InvalidArgumentError.__init__(self, node_def, op, f"{ADVICE}. TensorFlow says: {message}", *args)


def settle(model: Any) -> str:
    """Have ``model``, compiled for a distributed optimizer, trained without XLA; return what forbids it, or nothing.

    Keras' ``jit_compile="auto"`` means True where there is a GPU. That choice is changed, which is said once; a user
    who asked for True where "auto" would not is told what to change.
    """
    if not model.jit_compile or model.run_eagerly:
        return ""
    automatic = getattr(model, "_resolve_auto_jit_compile", None)
    if automatic is not None and not automatic():
        return f"the model is compiled with jit_compile=True. {ADVICE}"
    model.jit_compile = False
    model.make_train_function(force=True)
    _say_once()
    return ""


@functools.cache
def _say_once() -> None:
    log.warning("Keras chose jit_compile=True by itself; it trains with jit_compile=False: XLA cannot call DDL")
