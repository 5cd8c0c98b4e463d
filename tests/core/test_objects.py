"""Python objects between ranks: plain data comes out as it went in, everything else only on request, garbage never."""

from __future__ import annotations

import math
import pickle
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected
from hypothesis import example, given
from hypothesis import strategies as st

import ddl
from ddl._comm import object_codec

PLAIN: List[Any] = [
    *(None, True, False, 0, -1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 3**900, -(7**500)),
    *(0.5, -0.0, 1e308, float("inf"), -float("inf"), 1 + 2j, complex(0, -math.inf)),
    *("", "text", "ключ \x00 🙂", b"", b"\x00\xff" * 40_000),
    *([], (), {}, set(), frozenset(), [[]], ((),), [()], ([],)),
    *({1, 2, 3}, frozenset({"a", (1, 2)}), {(1, 2): {"x": [1, (2, [3, {4: (5,)}])]}}, {None: True, 3: 4, b"k": 1.5}),
    {"epoch": 3, "loss": [0.5, 0.25], "shape": (3, 4), "big": 2**200, "nested": ({"a": {1, 2**70}},)},
    list(range(5000)),
]
ARRAYS = [
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.zeros((3, 0, 2), np.float16),
    np.array(5.5),
    np.array([True, False]),
    np.array([1 + 2j, 3], np.complex64),
    np.array(["ab", "c"]),
    np.array([b"x", b"yz"]),
    np.array(["2020-02-29"], "datetime64[D]"),
    np.arange(12).reshape(3, 4)[::2, ::-1],
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.array([1, 2], ">i4"),
]
SCALARS = [np.float32(1.5), np.int64(-3), np.bool_(True), np.uint8(255), np.float16(0.25), np.complex128(1j)]


class Custom:
    """Not plain."""


@dataclass
class Point:
    """Not plain; can be pickled."""

    x: int


class Text(str):
    """A subclass of a plain type is not plain: its class would be lost."""


def round_trip(obj: Any, *, allow_pickle: bool = False) -> Any:
    return object_codec.decode(object_codec.encode(obj, allow_pickle=allow_pickle), allow_pickle=allow_pickle)


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types all the way down, signs of zero and NaN included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b) or (a != a and b != b)
    return bool(a == b)


@pytest.mark.parametrize("obj", PLAIN, ids=lambda obj: type(obj).__name__)  # a set's text differs by process
def test_plain_data_comes_back(obj: Any) -> None:
    assert same(round_trip(obj), obj)


def test_nan_comes_back() -> None:
    assert math.isnan(round_trip(float("nan"))) and math.isnan(round_trip([{1: float("nan")}])[0][1])


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_come_back(array: np.ndarray) -> None:
    got = round_trip({"array": array})["array"]
    assert type(got) is np.ndarray and got.dtype == array.dtype and got.shape == array.shape
    assert (got == array).all() and got.flags.writeable


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: str(scalar.dtype))
def test_scalars_come_back(scalar: Any) -> None:
    got = round_trip([scalar])[0]
    assert type(got) is type(scalar) and got == scalar


_leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
_hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
_plain = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(_hashable, inner, max_size=4)
        | st.sets(_hashable, max_size=4)
    ),
    max_leaves=20,
)


@given(_plain)
def test_any_plain_data_comes_back(obj: Any) -> None:
    got = round_trip(obj)
    assert type(got) is type(obj) and repr(got) == repr(obj) or same(got, obj) or _nan_inside(obj)


def _nan_inside(obj: Any) -> bool:
    return "nan" in repr(obj)


REFUSED = [
    *(Custom(), Custom, len, Text("x"), OrderedDict(a=1), Point(3), range(3), object(), slice(1), iter([1])),
    *(np.array([None]), np.zeros(2, [("a", "i4")]), [Custom()], {"a": (1, {2: Custom()})}, {1: Text("y")}),
]


@pytest.mark.parametrize("obj", REFUSED, ids=lambda obj: type(obj).__name__)
def test_everything_else_is_refused(obj: Any) -> None:
    with pytest.raises(ddl.InvalidArgument, match="allow_pickle"):
        object_codec.encode(obj, allow_pickle=False)


def test_pickles_on_request() -> None:
    point = {"p": Point(4), "o": OrderedDict(a=1)}
    got = pickle.loads(object_codec.encode(point, allow_pickle=True).tobytes()[1:])
    assert got["p"].x == 4
    assert round_trip({"o": OrderedDict(b=2)}, allow_pickle=True) == {"o": OrderedDict(b=2)}


def test_a_pickle_is_not_opened_unasked() -> None:
    data = object_codec.encode(OrderedDict(a=1), allow_pickle=True)
    with pytest.raises(ddl.InvalidArgument, match="allow_pickle"):
        object_codec.decode(data, allow_pickle=False)


def test_what_contains_itself_is_refused() -> None:
    loop: List[Any] = []
    loop.append(loop)
    with pytest.raises(ddl.InvalidArgument):
        object_codec.encode(loop, allow_pickle=False)


WRAPS: Dict[str, Callable[[Any], Any]] = {
    "list": lambda x: [x],
    "tuple": lambda x: (x,),
    "dict": lambda x: {"k": x},
    "frozenset": lambda x: frozenset([x]),
}


def nested(wrap: str, depth: int) -> Any:
    obj: Any = 1
    for _ in range(depth):
        obj = WRAPS[wrap](obj)
    return obj


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("depth", [100, 200, 400, 1500, 5000])
def test_what_is_too_deep_is_refused_by_the_sender(wrap: str, depth: int) -> None:
    """Up to 400 deep it goes; what goes to which depth beyond that is msgpack's business, and differs by version."""
    obj = nested(wrap, depth)
    if depth <= 400:
        assert round_trip(obj) == obj
    else:
        with pytest.raises(ddl.InvalidArgument, match="nested 500 deep; pass allow_pickle=True or flatten it"):
            object_codec.encode(obj, allow_pickle=False)


def in_a_small_thread(data: bytes) -> str:
    """How ``decode`` ends on a stack of 256 KiB."""
    outcome = []

    def decode() -> None:
        try:
            outcome.append(type(object_codec.decode(np.frombuffer(data, np.uint8), allow_pickle=False)).__name__)
        except ddl.Error as error:
            outcome.append(type(error).__name__)

    before = threading.stack_size(256 << 10)
    thread = threading.Thread(target=decode)
    thread.start()
    threading.stack_size(before)
    thread.join()
    return outcome[0]


def extension(code: int, data: bytes) -> bytes:
    return b"\xc9" + struct.pack(">IB", len(data), code) + data


def deep_lies() -> Dict[str, str]:
    """What a rank that lies could send: in a process of its own, because that might end."""
    array = tupled = extension(4, b"\x07")
    for _ in range(300):
        array = extension(5, b"\x94" + array + b"\x90\xc4\x00\xc2")
        tupled = extension(1, b"\x91" + tupled)
    lies = {
        "arrays in arrays": array,
        "tuples in tuples, as they once were": tupled,
        "lists": b"\x91" * 100_000,
        "marked lists": b"\x92\xc7\x00\x01" * 100_000 + b"\xc0",
        "keys": b"\x81" * 100_000,
    }
    honest = object_codec.encode(nested("tuple", 450), allow_pickle=False).tobytes()
    return {**{name: in_a_small_thread(b"M" + lie) for name, lie in lies.items()}, "honest": in_a_small_thread(honest)}


@pytest.mark.processes
def test_nothing_that_is_nested_uses_up_the_stack() -> None:
    wrong = ["arrays in arrays", "tuples in tuples, as they once were", "lists", "marked lists", "keys"]
    assert ranks.run(1, deep_lies) == [{**dict.fromkeys(wrong, "ProtocolError"), "honest": "tuple"}]


@pytest.mark.parametrize("lie", [b"\xc7\x00\x01", b"\x92\x01\xc7\x00\x01", b"\x81\xc7\x00\x02\x01"])
def test_a_mark_at_a_wrong_place_is_refused(lie: bytes) -> None:
    with pytest.raises(ddl.ProtocolError, match="at a wrong place"):
        object_codec.decode(np.frombuffer(b"M" + lie, np.uint8), allow_pickle=False)


class Bomb:
    """Its pickle runs code."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle from another rank was opened",))


@given(st.binary(max_size=300))
@example(b"")
@example(b"M")
@example(b"P" + pickle.dumps(Bomb()))
@example(b"M" + pickle.dumps(Bomb()))
@example(b"M\xc7\x02\x05\x92\x01")
@example(b"M\xdd\xff\xff\xff\xff")
@example(b"M\xc9\xff\xff\xff\xff\x05")
@example(b"M" + b"\x91" * 5000)
@example(b"M\x81\x90\x01")
@example(b"MM\xd4\x02\x91\x90")
@example(b"X\x00")
def test_garbage_is_an_error_of_ours(data: bytes) -> None:
    try:
        object_codec.decode(np.frombuffer(data, np.uint8), allow_pickle=False)
    except ddl.Error:
        pass


@given(st.integers(0, 127), st.binary(max_size=60))
@example(4, b"9" * 5000)
@example(3, b"9")
@example(5, b"\x94\xa1O\x90\xc4\x00\xc2")
@example(5, b"\x94\xa5f4,f4\x90\xc4\x00\xc2")
def test_garbage_in_extensions_is_an_error_of_ours(code: int, data: bytes) -> None:
    content = b"M\xc9" + len(data).to_bytes(4, "big") + bytes([code]) + data
    try:
        object_codec.decode(np.frombuffer(content, np.uint8), allow_pickle=False)
    except ddl.Error:
        pass


@given(st.data())
def test_damaged_objects_are_an_error_of_ours(data: Any) -> None:
    source = bytearray(object_codec.encode([*PLAIN[5:13], *ARRAYS[:4], {"a": (1, {2})}], allow_pickle=False).tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        source[data.draw(st.integers(0, len(source) - 1))] = data.draw(st.integers(0, 255))
    try:
        object_codec.decode(np.frombuffer(bytes(source), np.uint8), allow_pickle=False)
    except ddl.Error:
        pass


# --- between ranks ---


def between_ranks() -> Tuple[List[bool], List[str]]:
    rank, size = ddl.rank(), ddl.size()
    fine, errors = [], []
    for number, obj in enumerate([*PLAIN, nested("tuple", 200)]):
        root = number % size
        fine.append(same(ddl.broadcast_object(obj if rank == root else None, root=root), obj))
    own = {"rank": rank, "data": b"x" * (rank * 30_000), "array": np.arange(rank)}
    for r, got in enumerate(ddl.allgather_object(own)):
        fine.append(got["rank"] == r and len(got["data"]) == r * 30_000 and got["array"].tolist() == list(range(r)))
    got = ddl.allgather_object(OrderedDict(rank=rank), allow_pickle=True)
    fine.append(got == [OrderedDict(rank=r) for r in range(size)])
    got = ddl.broadcast_object(OrderedDict(a=5), allow_pickle=True)
    fine.append(type(got) is OrderedDict and got["a"] == 5)
    for call in (lambda: ddl.allgather_object(len), lambda: ddl.allgather_object({1: Custom()})):
        try:
            call()
        except ddl.InvalidArgument as error:
            errors.append(str(error))
    fine.append(float(ddl.allreduce(float(rank))) == (size - 1) / 2)
    return fine, errors


@pytest.mark.processes
@pytest.mark.parametrize(("size", "transport"), [(1, "shared"), (3, "shared"), (2, "tcp"), (4, "hybrid")])
def test_objects_between_ranks(size: int, transport: str) -> None:
    for fine, errors in ranks.run(size, between_ranks, **connected(transport)):
        assert len(fine) == len(PLAIN) + 1 + size + 3 and all(fine), fine
        assert len(errors) == 2 and all("allow_pickle" in text for text in errors)


def unwanted_pickle() -> Tuple[str, float]:
    try:
        ddl.broadcast_object(OrderedDict(a=1), allow_pickle=ddl.rank() == 0)
        kind = "returned"
    except ddl.InvalidArgument:
        kind = "InvalidArgument"
    return kind, float(ddl.allreduce(1.0, op=ddl.Sum))


@pytest.mark.processes
def test_an_unwanted_pickle_breaks_nothing() -> None:
    assert ranks.run(3, unwanted_pickle) == [("returned", 3.0), ("InvalidArgument", 3.0), ("InvalidArgument", 3.0)]


def one_that_cannot_be_sent():
    """All ranks are told at once whose object it was, and the communicator goes on."""
    value = object() if ddl.rank() == 1 else {"a": 1}
    for call in (
        lambda comm, rank: comm.broadcast_object(value, root=rank),
        lambda comm, rank: comm.allgather_object(value),
    ):
        for comm, rank in ((ddl.world(), 1), (ddl.world().split(0, key=-ddl.rank()), ddl.size() - 2)):
            with pytest.raises(ddl.InvalidArgument, match="rank 1: cannot send the object.*allow_pickle=True"):
                call(comm, rank)
            assert comm.allreduce(1.0, op=ddl.Sum) == ddl.size()


def test_an_object_that_cannot_be_sent_is_an_error_on_all_ranks():
    ranks.run(3, one_that_cannot_be_sent)
