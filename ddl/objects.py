"""Python objects as bytes: plain data by msgpack, which can do no harm; pickles only where both sides ask for them.

The first byte says which of the two it is. Decoding plain data never runs code and never builds anything but the
types listed in ``encode``.
"""

from __future__ import annotations

import pickle
from typing import Any

import msgpack
import numpy as np

from ddl.errors import InvalidArgument, ProtocolError
from ddl.sizes import ranks_differ

__all__ = ["decode", "encode", "encode_or_why", "refused"]

_PLAIN, _PICKLE, _REFUSED = b"M", b"P", b"E"
_TUPLE, _SET, _COMPLEX, _BIG, _ARRAY, _FROZENSET = range(1, 7)


def _extend(obj: Any) -> msgpack.ExtType:
    """Encode what msgpack does not know; called for everything that is not exactly one of its own types."""
    kind = type(obj)
    if kind is tuple:
        return msgpack.ExtType(_TUPLE, _pack(list(obj)))
    if kind in (set, frozenset):
        return msgpack.ExtType(_SET if kind is set else _FROZENSET, _pack(list(obj)))
    if kind is complex:
        return msgpack.ExtType(_COMPLEX, _pack([obj.real, obj.imag]))
    if kind is int:  # beyond 64 bits
        return msgpack.ExtType(_BIG, str(obj).encode())
    if isinstance(obj, (np.ndarray, np.generic)):
        array = np.asarray(obj)
        if array.dtype.kind in "biufcSUMm":
            fields = [
                array.dtype.str,
                list(array.shape),
                np.ascontiguousarray(array).tobytes(),
                kind is not np.ndarray,
            ]
            return msgpack.ExtType(_ARRAY, _pack(fields))
    raise InvalidArgument(
        f"a {kind.__module__}.{kind.__qualname__} is not plain data; pass allow_pickle=True on every rank if you trust "
        "all ranks to run code on all ranks"
    )


def _restore(code: int, data: bytes) -> Any:
    if code == _BIG:
        return int(data)
    value = _unpack(data)
    if code == _TUPLE:
        return tuple(value)
    if code == _SET:
        return set(value)
    if code == _FROZENSET:
        return frozenset(value)
    if code == _COMPLEX:
        return complex(*value)
    if code == _ARRAY:
        dtype, shape, content, scalar = value
        array = np.frombuffer(content, dtype=np.dtype(dtype)).reshape(shape).copy()
        return array[()] if scalar else array
    raise ProtocolError(f"an object has the unknown type code {code}; do all ranks run the same version of DDL?")


def _pack(obj: Any) -> bytes:
    try:
        packed: bytes = msgpack.packb(obj, default=_extend, strict_types=True)
    except OverflowError:
        packed = msgpack.packb(_extend(obj), strict_types=True)
    return packed


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_restore, strict_map_key=False, raw=False)  # bounded by the data's length


def encode(obj: Any, *, allow_pickle: bool) -> np.ndarray:
    """Return ``obj`` as bytes (uint8).

    Plain: None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, numpy arrays and scalars.
    Anything else is pickled where ``allow_pickle`` says so. ``InvalidArgument`` where it does not, or cannot be.
    """
    try:
        data = _PLAIN + _pack(obj)
    except (InvalidArgument, ValueError, RecursionError) as error:
        if not allow_pickle:
            raise InvalidArgument(f"cannot send the object: {error}") from error
        try:
            data = _PICKLE + pickle.dumps(obj, protocol=4)
        except Exception as failure:  # whatever the object's own methods raise
            raise InvalidArgument(f"cannot pickle the object: {failure!r}") from failure
    return np.frombuffer(bytearray(data), dtype=np.uint8)


def encode_or_why(obj: Any, *, allow_pickle: bool, who: str) -> np.ndarray:
    """As ``encode``; of an object of ``who`` that cannot be sent, return why: the ranks that wait for it raise that."""
    try:
        return encode(obj, allow_pickle=allow_pickle)
    except InvalidArgument as error:
        return np.frombuffer(bytearray(_REFUSED + f"{who}: {error}".encode(errors="replace")), dtype=np.uint8)


def refused(data: np.ndarray) -> bool:
    """Return whether these bytes say why there is no object."""
    return data[:1].tobytes() == _REFUSED


def decode(data: np.ndarray, *, allow_pickle: bool) -> Any:
    """Return the object. ``ProtocolError`` if the bytes are none.

    ``InvalidArgument`` for an unwanted pickle, and for an object that could not be sent.
    """
    content = data.tobytes()
    kind, body = content[:1], content[1:]
    if kind == _PICKLE:
        if not allow_pickle:
            raise ranks_differ("another rank sent a pickle; pass allow_pickle=True on every rank to accept it")
        return pickle.loads(body)
    if kind == _REFUSED:
        raise ranks_differ(body.decode(errors="replace"))
    if kind != _PLAIN:
        raise ProtocolError("another rank sent bytes that are no object of DDL")
    try:
        return _unpack(body)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"another rank sent bytes that are no object of DDL: {error}") from error
