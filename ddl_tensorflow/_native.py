"""The compiled op from Python's side: calls are taken from its queue and made, each by a thread of its own.

A call may wait for other ranks, which wait for another call of this one: so there is always a thread that takes the
next. Threads are kept, as many as calls were ever under way at once.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf

import ddl
from ddl_tensorflow._errors import text_of
from ddl_tensorflow._names import Place, run_at

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


class _Place(ctypes.Structure):
    """DdlPlace of call_op.cc."""

    _fields_ = [
        ("number", ctypes.c_int64),
        ("node", ctypes.c_char_p),
        ("loop", ctypes.c_uint64),
        ("iteration", ctypes.c_int64),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
    ]


class NativeOp:
    """``call_op.cc``, compiled at ``path``, and the threads that make its calls."""

    def __init__(self, path: str) -> None:
        loaded = tf.load_op_library(path)
        self._op, self._op_always = loaded.ddl_call, loaded.ddl_call_always
        self._library = ctypes.CDLL(path)
        self._library.ddl_take.restype = ctypes.c_void_p
        views = ctypes.POINTER(_View)
        self._library.ddl_take.argtypes = [ctypes.c_double, ctypes.POINTER(_Place), views, ctypes.c_int32]
        self._library.ddl_show.argtypes = [ctypes.c_void_p, views]
        shape = ctypes.POINTER(ctypes.c_int64)
        self._library.ddl_output.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, shape, ctypes.c_void_p]
        self._library.ddl_end.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._functions: Dict[int, Function] = {}
        self._ops: Dict[int, str] = {}  # how the graph's op is called that makes a call; not there: it was eager
        self._next = 0
        self._free: List[int] = []  # numbers of calls that have been made eagerly
        self._lock = threading.Lock()
        self._idle = 0
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._idle = 0

    def __call__(
        self,
        function: Function,
        anchor: tf.Tensor,
        inputs: Sequence[tf.Tensor],
        dtypes: Optional[Sequence[tf.DType]],
        always: bool,
    ) -> List[tf.Tensor]:
        """See ``_call.call``. ``anchor``: a tensor that TensorFlow does not take for a constant."""
        self._listen()
        types = [one.dtype for one in inputs] if dtypes is None else list(dtypes)
        op = self._op_always if always else self._op
        with self._lock:
            # TensorFlow keeps a kernel for each number, so eager calls use theirs again: there are as many as were ever
            # under way at once. A graph's are for good: nobody says when it is not run any more.
            number = self._free.pop() if self._free and tf.executing_eagerly() else self._next
            self._next = max(self._next, number + 1)
        self._functions[number] = function
        try:
            outputs = op(anchor=anchor, inputs=list(inputs), R=types, call=number, alike=dtypes is None)
        except BaseException:
            self._take_back(number)
            raise
        made = [outputs] if isinstance(outputs, (tf.Operation, tf.Tensor)) else list(outputs or ())
        if not tf.executing_eagerly():
            self._ops[number] = (made[0].op if types else made[0]).name
        return made if types else []

    def _take_back(self, number: int) -> Optional[Function]:
        """Return the function of a call; its number is free again if it is an eager one, which is made once."""
        if number in self._ops:
            return self._functions[number]
        with self._lock:
            function = self._functions.pop(number, None)
            if function is not None:
                self._free.append(number)
        return function

    def _listen(self) -> None:
        with self._lock:
            if self._idle > 0:
                return
            self._idle += 1
        threading.Thread(target=self._serve, name="ddl-tensorflow", daemon=True).start()

    def _serve(self) -> None:
        place, views = _Place(), (_View * 64)()
        while True:
            handle = self._library.ddl_take(_WAIT, ctypes.byref(place), views, len(views))
            if not handle:
                continue
            with self._lock:
                self._idle -= 1
            self._listen()
            error: Optional[bytes] = None
            try:
                views = self._make(handle, place, views)
            except BaseException as caught:  # whatever it is, TensorFlow raises it where the result is asked for
                error = text_of(caught).encode(errors="replace").replace(b"\0", b"?")
            self._library.ddl_end(handle, error)  # may run what comes next, here, for as long as it takes
            with self._lock:
                self._idle += 1

    def _make(self, handle: int, place: _Place, views: Any) -> Any:
        function, op = self._take_back(place.number), self._ops.get(place.number)
        if function is None:
            raise ddl.InvalidState(
                "the graph was made by another process; build it anew, as calls of DDL are not saved"
            )
        tensors = place.inputs + place.outputs
        if tensors > len(views):
            views = (_View * tensors)()
            self._library.ddl_show(handle, views)
        inputs = [_array(views[i], read_only=True) for i in range(place.inputs)]
        outputs = [_array(views[i], read_only=False) for i in range(place.inputs, tensors)]
        where = None if op is None else Place.of(place.node.decode(), op, place.loop, place.iteration)
        made = run_at(where, function, inputs, outputs if outputs else None)
        if not outputs:
            for i, array in enumerate(made):
                whole = np.asarray(array, order="C")  # ascontiguousarray gives a number a dimension
                shape = (ctypes.c_int64 * whole.ndim)(*whole.shape)
                if not self._library.ddl_output(handle, i, whole.ndim, shape, whole.ctypes.data):
                    raise MemoryError(f"TensorFlow has no memory for a result of {whole.nbytes} bytes")
        return views


@functools.cache
def _type(number: int) -> np.dtype[Any]:
    return np.dtype(tf.dtypes.as_dtype(number).as_numpy_dtype)


def _array(view: _View, read_only: bool) -> np.ndarray[Any, Any]:
    """Return an array of the tensor's memory, which it does not look after."""
    dtype, dimensions, size = _type(view.type), view.dimensions, view.bytes
    if dimensions > _DIMENSIONS:
        raise ddl.InvalidArgument(f"a tensor has {dimensions} dimensions; reshape it to {_DIMENSIONS} at most")
    memory = (ctypes.c_char * size).from_address(view.data) if size else None
    array: np.ndarray[Any, Any] = np.ndarray(view.shape[:dimensions], dtype, memory)
    array.flags.writeable = not read_only
    return array
