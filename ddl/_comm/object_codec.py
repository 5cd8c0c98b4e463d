"""Python objects as bytes: plain data by msgpack, which can do no harm; by pickle only if both sides ask for it.

The first byte says which of the two it is. Decoding plain data never runs code and never builds anything but the
types listed in ``encode``.

A tuple or a set is written as a list whose first item is a mark. So msgpack itself walks nested data, and it does so
without recursion: nothing that another rank sends can use up the stack. The unpacker refuses more than 1024 levels. The
packer refuses more than 511 or 1024, depending on its version, so the sender refuses data that is too deep.
"""

from __future__ import annotations

import pickle
import struct
from itertools import islice
from typing import Any, Callable, Dict, Iterable, List

import msgpack
import numpy as np

from ddl._comm.size_exchange import ranks_differ
from ddl.errors import InvalidArgument, ProtocolError

__all__ = ["decode", "encode", "encode_or_why", "refused"]

_PLAIN, _PICKLE, _REFUSED = b"M", b"P", b"E"
_TUPLE, _SET, _COMPLEX, _BIG, _ARRAY, _FROZENSET = range(1, 7)
_CODES: Dict[type, int] = {tuple: _TUPLE, set: _SET, frozenset: _FROZENSET}
_ARRAY_KINDS = "biufcSUMm"
_PAIR = struct.Struct("<dd")


class _Mark:
    """The first item of a list that stands for something else, while it is decoded."""

    def __init__(self, build: Callable[[Iterable[Any]], Any]) -> None:
        self.build = build


_MARKS: Dict[int, _Mark] = {code: _Mark(build) for build, code in _CODES.items()}


def _extend(obj: Any) -> Any:
    """Encode what msgpack does not know; called for everything that is not exactly one of its own types."""
    kind = type(obj)
    if kind in _CODES:
        return [msgpack.ExtType(_CODES[kind], b""), *obj]
    if kind is complex:
        return msgpack.ExtType(_COMPLEX, _PAIR.pack(obj.real, obj.imag))
    if kind is int:  # beyond 64 bits
        return msgpack.ExtType(_BIG, obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True))
    if isinstance(obj, (np.ndarray, np.generic)):
        array = np.asarray(obj)
        if array.dtype.kind in _ARRAY_KINDS:
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


def _restore_array(data: bytes) -> Any:
    dtype, shape, content, scalar = msgpack.unpackb(data)
    kind = np.dtype(dtype)
    if kind.kind not in _ARRAY_KINDS:
        raise ProtocolError(f"another rank sent an array of {dtype!r:.100}, which is no type that is sent")
    array = np.frombuffer(content, dtype=kind).reshape(shape).copy()
    return array[()] if scalar else array


class _Decoder:
    """Restores one object. msgpack calls ``extension`` and ``sequence`` from the inside out."""

    def __init__(self) -> None:
        self._marks = 0  # how many marks stand in no list yet

    def decode(self, data: bytes) -> Any:
        value = msgpack.unpackb(
            data, ext_hook=self.extension, list_hook=self.sequence, strict_map_key=False, raw=False
        )  # bounded by the data's length
        if self._marks:
            raise ProtocolError("another rank sent an object with the mark of a tuple or a set at a wrong place")
        return value

    def extension(self, code: int, data: bytes) -> Any:
        if code in _MARKS:
            self._marks += 1
            return _MARKS[code]
        if code == _BIG:
            return int.from_bytes(data, "little", signed=True)
        if code == _COMPLEX:
            return complex(*_PAIR.unpack(data))
        if code == _ARRAY:
            return _restore_array(data)
        raise ProtocolError(f"an object has the unknown type code {code}; do all ranks run the same version of DDL?")

    def sequence(self, items: List[Any]) -> Any:
        if items and type(items[0]) is _Mark:
            self._marks -= 1
            return items[0].build(islice(items, 1, None))
        return items


def _pack(obj: Any) -> bytes:
    try:
        packed: bytes = msgpack.packb(obj, default=_extend, strict_types=True)
    except OverflowError:
        packed = msgpack.packb(_extend(obj), strict_types=True)
    return packed


def encode(obj: Any, *, allow_pickle: bool) -> np.ndarray:
    """Return ``obj`` as bytes (uint8).

    Plain: None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, numpy arrays and scalars.
    Anything else, also what is nested more than 500 deep, is pickled where ``allow_pickle`` says so.
    ``InvalidArgument`` where it does not, or cannot be.
    """
    try:
        data = _PLAIN + _pack(obj)
    except (InvalidArgument, ValueError, RecursionError) as error:
        if not allow_pickle:
            deep = (
                ""
                if isinstance(error, (InvalidArgument, UnicodeError))
                else "; plain data may be nested 500 deep; pass allow_pickle=True or flatten it"
            )
            raise InvalidArgument(f"cannot send the object: {error}{deep}") from error
        try:
            data = _PICKLE + pickle.dumps(obj, protocol=4)
        except Exception as failure:  # whatever the object's own methods raise
            raise InvalidArgument(f"cannot pickle the object: {failure!r}") from failure
    return np.frombuffer(bytearray(data), dtype=np.uint8)


def encode_or_why(obj: Any, *, allow_pickle: bool, who: str) -> np.ndarray:
    """As ``encode``; if an object of ``who`` cannot be sent, return why: the ranks that wait for it raise that."""
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
        return _Decoder().decode(body)
    except (ValueError, TypeError, struct.error, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"another rank sent bytes that are no object of DDL: {error}") from error
