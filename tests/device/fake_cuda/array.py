"""An array in device memory, which speaks DLPack and version 3 of ``__cuda_array_interface__``."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
from device.fake_cuda.calls import DriverCalls

CUDA = 2  #: kDLCUDA
LEGACY, NO_SYNC = 1, -1
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # of numpy's kinds in DLPack


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _ManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("manager", c_void_p), ("deleter", c_void_p)]


#: By address: what a consumer has, and what it is to call when it is let go.
_exported: Dict[int, Tuple[_ManagedTensor, Any, Callable[[], None]]] = {}

_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, c_void_p)  # called with the interpreter's lock held
_python = ctypes.PyDLL(None)  # not ctypes.pythonapi, whose functions have the types that anybody gave them last
_new_capsule = _python.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [c_void_p, c_char_p, _DESTRUCTOR]
_is_capsule = _python.PyCapsule_IsValid
_is_capsule.restype, _is_capsule.argtypes = ctypes.c_int, [c_void_p, c_char_p]
_pointer_of = _python.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = c_void_p, [c_void_p, c_char_p]
_UNUSED = b"dltensor"  # a capsule keeps the pointer to its name


def _let_go(managed: int) -> None:
    _, _, released = _exported.pop(managed)
    released()


def _end_capsule(capsule: int) -> None:
    if _is_capsule(capsule, _UNUSED):  # who has consumed it has renamed it, and calls the deleter itself
        _let_go(_pointer_of(capsule, _UNUSED))


_deleter, _destructor = _DELETER(_let_go), _DESTRUCTOR(_end_capsule)


class DeviceArray:
    """An array of ``shape`` and ``dtype`` on the device of this thread's context, produced on ``stream``.

    ``code_and_bits``: DLPack's type, where numpy has none (bfloat16: ``(4, 16)`` with dtype uint16).
    ``interface_stream`` is what ``__cuda_array_interface__`` says; ``requested`` are the streams that consumers gave to
    ``__dlpack__``; ``released`` says how many of them have let the array go, and ``when_released`` is called then.
    """

    def __init__(
        self,
        fake: DriverCalls,
        shape: Union[int, Sequence[int]],
        dtype: Any = "float32",
        *,
        stream: int = LEGACY,
        code_and_bits: Optional[Tuple[int, int]] = None,
    ) -> None:
        self.fake, self.stream = fake, stream
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.size = int(np.prod(self.shape, dtype=np.int64))
        self.nbytes = self.size * self.dtype.itemsize
        self.pointer = fake.alloc(max(self.nbytes, 1))
        self.context = fake.context()
        self.device = fake.pointer_attributes(self.pointer)["ordinal"]
        self.interface_stream: Optional[int] = stream or LEGACY
        self.requested: List[Optional[int]] = []
        self.released = 0
        self.when_released: Callable[[], None] = lambda: None
        self._type = code_and_bits or (_CODES[self.dtype.kind], 8 * self.dtype.itemsize)

    def set(self, values: Any) -> DeviceArray:
        """Queue a copy of the values to the array on its stream, from registered host memory."""
        staging = self.fake.host(self.nbytes)
        staging.view(self.dtype)[...] = np.broadcast_to(np.asarray(values, self.dtype), self.shape).ravel()
        self.fake.access(staging.address, self.nbytes, writes=True, who="DeviceArray.set")
        self.fake.copy_up(self.pointer, staging.address, self.nbytes, self.stream)
        return self

    def numpy(self) -> np.ndarray:
        """Return what is in the array now: an access of this thread."""
        return np.frombuffer(self.fake.peek(self.pointer, self.nbytes), self.dtype).reshape(self.shape)

    def free(self) -> None:
        """Free the memory, in whatever thread."""
        with self.fake.pushed(self.context):
            self.fake.free(self.pointer)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
            "stream": self.interface_stream,
        }

    def __dlpack_device__(self) -> Tuple[int, int]:
        return CUDA, self.device or 0

    def __dlpack__(self, *, stream: Optional[int] = None, **newer: Any) -> Any:
        """Make ``stream`` wait for the array's own, and return a capsule; ``newer``: arguments of later versions."""
        self.requested.append(stream)
        if stream == 0:
            raise ValueError("DLPack forbids stream 0, which may mean two things")
        consumer = LEGACY if stream is None else stream
        if consumer not in (NO_SYNC, self.stream):
            with self.fake.pushed(self.context):
                self.fake.order(self.stream, consumer)
        shape = (c_int64 * len(self.shape))(*self.shape)
        managed = _ManagedTensor()
        tensor = managed.tensor
        tensor.data, tensor.device_type, tensor.device_id = self.pointer, CUDA, self.device or 0
        tensor.ndim, tensor.shape = len(self.shape), shape
        (tensor.code, tensor.bits), tensor.lanes = self._type, 1
        managed.deleter = ctypes.cast(_deleter, c_void_p).value
        address = ctypes.addressof(managed)
        _exported[address] = (managed, shape, self._release)
        return _new_capsule(address, _UNUSED, _destructor)

    def __array_namespace__(self) -> DeviceArray:
        return self  # its own: it has ``empty``

    def empty(self, shape: Tuple[int, ...], *, dtype: Any, device: Any) -> DeviceArray:
        """Return a new array on the same device, produced on the same stream."""
        assert device == self.device
        array = DeviceArray(self.fake, shape, dtype, stream=self.stream, code_and_bits=self._type)
        array.interface_stream = self.interface_stream
        return array

    def _release(self) -> None:
        self.released += 1
        self.when_released()


class ImportedArray:
    """What a framework makes of memory on a GPU that a producer of DLPack gives it: its capsule keeps that alive."""

    def __init__(self, fake: DriverCalls, producer: Any) -> None:
        self._fake, self._capsule = fake, producer.__dlpack__()
        tensor = _ManagedTensor.from_address(_pointer_of(id(self._capsule), _UNUSED)).tensor
        assert (tensor.device_type, tensor.device_id) == producer.__dlpack_device__() and tensor.lanes == 1
        kinds = {code: kind for kind, code in _CODES.items()}
        self.dtype = np.dtype(f"{kinds[tensor.code]}{tensor.bits // 8}")
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self._pointer = tensor.data

    def numpy(self) -> np.ndarray:
        """Return what is in it now: an access of this thread."""
        nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        return np.frombuffer(self._fake.peek(self._pointer, nbytes), self.dtype).reshape(self.shape)
