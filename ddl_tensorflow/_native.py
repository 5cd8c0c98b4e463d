"""The compiled op from Python's side: calls are taken from its queue and made, each by a thread of its own.

A call may wait for other ranks, which wait for another call of this one: so there is always a thread that takes the
next. Threads are kept, as many as calls were ever under way at once.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from ddl_tensorflow._errors import text_of

__all__ = ["Function", "NativeOp"]

#: Gets the inputs, read only, and the outputs if these are alike; else it returns them.
Function = Callable[[List[np.ndarray[Any, Any]], Optional[List[np.ndarray[Any, Any]]]], Sequence[np.ndarray[Any, Any]]]

_DIMENSIONS = 16
_WAIT = 3600.0  #: seconds between two looks at the queue, of a thread that has nothing to do


class _View(ctypes.Structure):
    """DdlView of call_op.cc."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("shape", ctypes.c_int64 * _DIMENSIONS),
    ]


class _Memory:
    """What numpy makes an array of, without looking after the memory."""

    def __init__(self, address: int, shape: Sequence[int], kind: str, read_only: bool) -> None:
        self.__array_interface__ = {"data": (address, read_only), "shape": tuple(shape), "typestr": kind, "version": 3}


class NativeOp:
    """``call_op.cc``, compiled at ``path``, and the threads that make its calls."""

    def __init__(self, path: str) -> None:
        self._op = tf.load_op_library(path).ddl_call
        self._library = ctypes.CDLL(path)
        self._library.ddl_take.restype = ctypes.c_void_p
        self._library.ddl_take.argtypes = [ctypes.c_double, ctypes.POINTER(ctypes.c_int64)]
        self._library.ddl_tensors.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(_View), ctypes.c_int32]
        shape = ctypes.POINTER(ctypes.c_int64)
        self._library.ddl_output.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, shape, ctypes.c_void_p]
        self._library.ddl_end.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._functions: Dict[int, Function] = {}
        self._next = 0
        self._slots = threading.local()
        self._lock = threading.Lock()
        self._idle = 0
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._idle = 0

    def _add(self, function: Function) -> int:
        with self._lock:
            number, self._next = self._next, self._next + 1
        self._functions[number] = function
        return number

    def __call__(
        self, function: Function, anchor: tf.Tensor, inputs: Sequence[tf.Tensor], dtypes: Optional[Sequence[tf.DType]]
    ) -> List[tf.Tensor]:
        """See ``_call.call``. ``anchor``: a tensor that TensorFlow does not take for a constant."""
        self._listen()
        types = [one.dtype for one in inputs] if dtypes is None else list(dtypes)
        if tf.executing_eagerly():
            # TensorFlow keeps a kernel for each number, so every thread has one, for the one call that it makes.
            number = getattr(self._slots, "number", None)
            if number is None:
                number = self._slots.number = self._add(function)
            self._functions[number] = function
        else:
            number = self._add(function)  # for good: nobody says when a graph is not run any more
        outputs = self._op(anchor=anchor, inputs=list(inputs), R=types, call=number, alike=dtypes is None)
        return list(outputs) if types else []

    def _listen(self) -> None:
        with self._lock:
            if self._idle > 0:
                return
            self._idle += 1
        threading.Thread(target=self._serve, name="ddl-tensorflow", daemon=True).start()

    def _serve(self) -> None:
        number, views = ctypes.c_int64(), (_View * 64)()
        while True:
            handle = self._library.ddl_take(_WAIT, ctypes.byref(number))
            if not handle:
                continue
            with self._lock:
                self._idle -= 1
            self._listen()
            error: Optional[bytes] = None
            try:
                views = self._make(handle, self._functions[number.value], views)
            except BaseException as caught:  # whatever it is, TensorFlow raises it where the result is asked for
                error = text_of(caught).encode(errors="replace").replace(b"\0", b"?")
            self._library.ddl_end(handle, error)  # may run what comes next, here, for as long as it takes
            with self._lock:
                self._idle += 1

    def _make(self, handle: int, function: Function, views: Any) -> Any:
        inputs, views = self._arrays(handle, 0, views)
        outputs, views = self._arrays(handle, 1, views)
        made = function(inputs, outputs if outputs else None)
        if not outputs:
            for i, array in enumerate(made):
                whole = np.ascontiguousarray(array)
                shape = (ctypes.c_int64 * whole.ndim)(*whole.shape)
                if not self._library.ddl_output(handle, i, whole.ndim, shape, whole.ctypes.data):
                    raise MemoryError(f"TensorFlow has no memory for a result of {whole.nbytes} bytes")
        return views

    def _arrays(self, handle: int, outputs: int, views: Any) -> Any:
        count = self._library.ddl_tensors(handle, outputs, views, len(views))
        if count > len(views):
            views = (_View * count)()
            self._library.ddl_tensors(handle, outputs, views, count)
        if count < 0:
            raise ValueError(f"a tensor has more than {_DIMENSIONS} dimensions")
        return [_array(views[i], read_only=not outputs) for i in range(count)], views


def _array(view: _View, read_only: bool) -> np.ndarray[Any, Any]:
    dtype = np.dtype(tf.dtypes.as_dtype(view.type).as_numpy_dtype)
    shape = view.shape[: view.dimensions]
    if not view.bytes:
        return np.empty(shape, dtype)
    raw = np.asarray(_Memory(view.data, shape, f"<u{dtype.itemsize}" if dtype.kind == "V" else dtype.str, read_only))
    return raw.view(dtype) if dtype.kind == "V" else raw  # of types that numpy itself lacks, bfloat16 say
