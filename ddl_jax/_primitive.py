"""The all-reduce as an operation of JAX's: in compiled functions, too, and in the same order on all ranks.

XLA runs what does not depend on one another in any order, and ranks match operations by their order. So the operation
has an ordered effect, as ``io_callback(ordered=True)`` has: JAX hands a token from each such operation to the next one
of the program, through loops and branches, and from one compiled function to the next.

It runs call_op.cc, compiled on demand. Where there is no compiler it calls Python instead, which is slower.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path
from typing import Any, Optional, Tuple

import jax
import jaxlib
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

import ddl
from ddl.adapter.compiled import BuildError, compiled
from ddl.adapter.native import address_of, native_calls
from ddl.reduce_op import ReduceOp
from ddl_jax._compat import OrderedEffect, abstract_token, apply_primitive

__all__ = ["allreduce_p", "communicator"]

_SOURCE = Path(__file__).with_name("call_op.cc")
_TARGET = "ddl_allreduce"
_log = logging.getLogger("ddl")
_ORDERED = OrderedEffect()


class _Joined:
    """The communicator of these operations, which nobody else uses; it belongs to the job that this process is in."""

    world: Optional[ddl.Communicator] = None
    own: Optional[ddl.Communicator] = None


def communicator() -> ddl.Communicator:
    """Return the communicator of these operations. Collective the first time in a job.

    Raises ``InvalidState`` before ``init``.
    """
    world = ddl.world()
    if _Joined.world is not world or _Joined.own is None:
        _tell_jax()
        _Joined.own, _Joined.world = ddl.split(0), world
        library = _library()
        assert _Joined.own is not None, "this rank has passed a color"
        if library is not None:
            library.ddl_use(ctypes.c_void_p(native_calls()), ctypes.c_void_p(address_of(_Joined.own)))
    return _Joined.own


@functools.cache
def _library() -> Optional[ctypes.CDLL]:
    """Return the compiled operator, which XLA knows then; None: it cannot be compiled."""
    flags = ["-std=c++17", f"-I{jax.ffi.include_dir()}"]
    try:
        path = compiled(_SOURCE, framework="jaxlib", version=jaxlib.__version__, key="", flags=flags)
    except BuildError as error:
        if ddl.rank() == 0:
            _log.warning("ddl_jax calls Python for each all-reduce, as its op cannot be compiled: %s", error)
        return None
    library = ctypes.CDLL(str(path))
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(library.DdlAllreduce), platform="cpu")
    return library


allreduce_p = Primitive(_TARGET)
allreduce_p.multiple_results = True
allreduce_p.def_impl(functools.partial(apply_primitive, allreduce_p))


@allreduce_p.def_effectful_abstract_eval
def _describe(*arrays: Any, op: int) -> Tuple[Any, Any]:
    return [jax.core.ShapedArray(array.shape, array.dtype) for array in arrays], {_ORDERED}


def _lower(ctx: Any, *operands: Any, op: int) -> Any:
    token = ctx.tokens_in.get(_ORDERED)
    if _library() is None:
        results, token, _ = mlir.emit_python_callback(
            ctx,
            functools.partial(_in_python, op=op),
            token,
            list(operands),
            ctx.avals_in,
            ctx.avals_out,
            has_side_effect=True,
            returns_token=True,
        )
    else:
        with_token = {name: [abstract_token, *getattr(ctx, name)] for name in ("avals_in", "avals_out")}
        rule = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True)
        token, *results = rule(ctx.replace(**with_token), token, *operands, op=np.int32(op))
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({_ORDERED: token})))
    return results


def _in_python(*arrays: Any, op: int) -> Tuple[np.ndarray, ...]:
    assert _Joined.own is not None, "communicator() was called when the operation was made"
    return tuple(_Joined.own.allreduce(np.asarray(array), op=ReduceOp(op)) for array in arrays)


def _batch(arrays: Any, dims: Any, *, op: int) -> Tuple[Any, Any]:
    """Element by element: a dimension more changes nothing."""
    return allreduce_p.bind(*arrays, op=op), dims


@functools.cache
def _tell_jax() -> None:
    """Tell JAX how the operation is compiled, and mapped."""
    mlir.register_lowering(allreduce_p, _lower, platform="cpu")
    batching.primitive_batchers[allreduce_p] = _batch
