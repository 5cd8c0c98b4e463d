"""The compiled op, on Python's side: threads of Python make its calls, or the op's own thread makes them at once.

A call may wait for other ranks, and these for another call of this rank. So there is always a thread that takes the
next call from the op's queue. Threads are kept, as many as there were calls at the same time. But waking such a thread,
and then one of TensorFlow's, takes longer than a small operation. So the op first makes a small call in
TensorFlow's own thread, which leaves it to another thread only if it would have to sleep.
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
from ddl.adapter.operations import Waitable
from ddl_tensorflow._errors import code_of, text_of
from ddl_tensorflow._names import Place, run_at

__all__ = ["Function", "NativeOp", "listed"]

Array = np.ndarray[Any, Any]
#: ``function(inputs, outputs, sleeps)`` writes to the outputs, one for each input and like it, perhaps the same array;
#: with None for them it makes new arrays, which are its result. It returns what has ended, or, if it is not to sleep,
#: what may have to be waited for.
Function = Callable[[List[Array], Optional[List[Array]], bool], Waitable]

_DIMENSIONS = 16
_WAIT = 3600.0  #: seconds between two looks at the queue, of a thread that has nothing to do
_ENDED, _GOES_ON = 1, 0  #: what the op is told of a call that it had made at once


class _View(ctypes.Structure):
    """DdlView of call_op.cc."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("shape", ctypes.c_int64 * _DIMENSIONS),
    ]


class _DdlPlace(ctypes.Structure):
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
        self._library.ddl_take.argtypes = [ctypes.c_double, ctypes.POINTER(_DdlPlace), views, ctypes.c_int32]
        self._library.ddl_show.argtypes = [ctypes.c_void_p, views]
        shape = ctypes.POINTER(ctypes.c_int64)
        self._library.ddl_output.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, shape, ctypes.c_void_p]
        self._library.ddl_end.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p]
        self._library.ddl_put.argtypes = [ctypes.c_void_p]
        at_once = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_DdlPlace), views)
        self._at_once = at_once(self._make_at_once)  # kept for as long as the op may ask for it
        self._library.ddl_make_at_once.argtypes = [at_once]
        self._library.ddl_make_at_once(self._at_once)
        self._tensorflows = threading.local()  # its threads
        self._functions: Dict[int, Function] = {}
        self._begun: Dict[int, Waitable] = {}  # calls in the queue that are only to be waited for, by their handles
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
        at_once: bool,
    ) -> List[tf.Tensor]:
        """See ``_call.call``. ``anchor``: a tensor that TensorFlow does not take for a constant."""
        self._listen()
        types = [tensor.dtype for tensor in inputs] if dtypes is None else list(dtypes)
        op = self._op_always if always else self._op
        with self._lock:
            # TensorFlow keeps a kernel for each number, so eager calls use theirs again: there are as many as were ever
            # under way at once. A graph's are for good: nobody says when it is not run any more.
            number = self._free.pop() if self._free and tf.executing_eagerly() else self._next
            self._next = max(self._next, number + 1)
        self._functions[number] = function
        try:
            outputs = op(
                anchor=anchor, inputs=list(inputs), R=types, call=number, alike=dtypes is None, at_once=at_once
            )
        except BaseException:
            self._take_back(number)
            raise
        results = [outputs] if isinstance(outputs, (tf.Operation, tf.Tensor)) else list(outputs or ())
        if not tf.executing_eagerly():
            self._ops[number] = (results[0].op if types else results[0]).name
        return results if types else []

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

    def _make_at_once(self, handle: int, place: Any, views: Any) -> int:
        """Make a small call on TensorFlow's thread, or begin it: one of ours waits for its end then."""
        if not hasattr(self._tensorflows, "known"):
            # Else Python makes a state for the thread and takes it down again with each call, which takes 30 us.
            ctypes.pythonapi.PyGILState_Ensure()
            self._tensorflows.known = True
        try:
            work = self._make(place.contents, views, sleeps=False)
            if work.done():
                self._end_well(handle, place.contents.outputs, work)
                return _ENDED
            self._begun[handle] = work
            self._library.ddl_put(handle)
        except BaseException as caught:  # see _serve
            self._library.ddl_end(handle, code_of(caught), _message_of(caught))
        return _GOES_ON

    def _serve(self) -> None:
        place, views = _DdlPlace(), (_View * 64)()
        while True:
            handle = self._library.ddl_take(_WAIT, ctypes.byref(place), views, len(views))
            if not handle:
                continue
            with self._lock:
                self._idle -= 1
            self._listen()
            code, error = 0, None
            try:
                tensors = place.inputs + place.outputs
                if tensors > len(views):
                    views = (_View * tensors)()
                    self._library.ddl_show(handle, views)
                work = self._begun.pop(handle, None) or self._make(place, views, sleeps=True)
                self._end_well(handle, place.outputs, work)
            except BaseException as caught:  # whatever it is, TensorFlow raises it where the result is asked for
                code, error = code_of(caught), _message_of(caught)
            self._library.ddl_end(handle, code, error)  # may run what comes next, here, for as long as it takes
            with self._lock:
                self._idle += 1

    def _make(self, place: _DdlPlace, views: Any, sleeps: bool) -> Waitable:
        function, op = self._take_back(place.number), self._ops.get(place.number)
        if function is None:
            raise ddl.InvalidState(
                "the graph was made by another process; build it anew, as calls of DDL are not saved"
            )
        inputs, outputs = [], []
        given, in_place = place.inputs, place.outputs  # each look at a field of ctypes makes a new object
        shown = views[: given + in_place]
        for i, view in enumerate(shown[:given]):
            if in_place:
                target = shown[given + i]
                outputs.append(_array(target, True))
                if target.data == view.data:  # TensorFlow lets the result have the memory of its input
                    inputs.append(outputs[i])
                    continue
            inputs.append(_array(view, False))
        where = None if op is None else Place.of(place.node.decode(), op, place.loop, place.iteration)
        return run_at(where, function, inputs, outputs or None, sleeps)

    def _end_well(self, handle: int, in_place: int, work: Waitable) -> None:
        """Wait for the end of a call, and give TensorFlow the results that it has not got yet."""
        results = work.wait()
        for i, array in enumerate(() if in_place else listed(results)):
            whole = np.asarray(array, order="C")  # ascontiguousarray gives a number a dimension
            shape = (ctypes.c_int64 * whole.ndim)(*whole.shape)
            if not self._library.ddl_output(handle, i, whole.ndim, shape, whole.ctypes.data):
                raise MemoryError(f"TensorFlow has no memory for a result of {whole.nbytes} bytes")


def listed(results: Any) -> List[Array]:
    """Return the results of a function of one or of several."""
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _message_of(error: BaseException) -> bytes:
    return text_of(error).encode(errors="replace").replace(b"\0", b"?")


@functools.cache
def _type(number: int) -> np.dtype[Any]:
    return np.dtype(tf.dtypes.as_dtype(number).as_numpy_dtype)


@functools.lru_cache(maxsize=4096)
def _bytes(size: int) -> Any:
    """Return the type of so many bytes; to make one takes longer than all the rest of ``_array``."""
    return ctypes.c_char * size


def _array(view: _View, writeable: bool) -> Array:
    """Return an array of the tensor's memory, which it does not look after."""
    dimensions, size = view.dimensions, view.bytes
    if dimensions > _DIMENSIONS:
        raise ddl.InvalidArgument(f"a tensor has {dimensions} dimensions; reshape it to {_DIMENSIONS} at most")
    memory = _bytes(size).from_address(view.data) if size else None
    array: Array = np.ndarray(view.shape[:dimensions], _type(view.type), memory)
    if not writeable:
        array.flags.writeable = False
    return array
