"""Calls of the core for libraries that are no Python (csrc/python/native_calls.h), as such a library makes them."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np
import pytest
import ranks

import ddl
from ddl.adapter.calls import Collective
from ddl.adapter.native import address_of, native_calls

pytestmark = pytest.mark.processes

FLOAT32, INT64 = 2, 7  # of csrc/reduce/dtype.h


class Call(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("collective", "op", "dtype", "root")),
        *((name, ctypes.c_void_p) for name in ("input", "output")),
        *((name, ctypes.c_uint64) for name in ("count", "part")),
    ]


class Table(ctypes.Structure):
    _text = (ctypes.c_char_p, ctypes.c_size_t)
    _fields_ = [
        ("run", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Call), *_text)),
        (
            "start",
            ctypes.CFUNCTYPE(
                ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Call), ctypes.POINTER(ctypes.c_void_p), *_text
            ),
        ),
        ("wait", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *_text)),
    ]


def table() -> Table:
    return Table.from_address(native_calls())


def call(collective, dtype, input=None, output=None, *, op=0, root=0, part=0):
    given = input if input is not None else output
    addresses = (array.ctypes.data if array is not None else None for array in (input, output))
    return Call(int(collective), op, dtype, root, *addresses, given.size if given is not None else 0, part)


def run(communicator, described):
    """Return the text of the error; empty: none."""
    text = ctypes.create_string_buffer(1024)
    status = table().run(address_of(communicator), ctypes.byref(described), text, len(text))
    assert (status != 0) == bool(text.value)
    return text.value.decode()


def collectives():
    world, me, size = ddl.world(), ddl.rank(), ddl.size()
    for length in (1, 1000, 200_000):
        values = np.arange(length, dtype=np.float32) % 5 + me
        out = np.empty_like(values)
        total = sum(np.arange(length, dtype=np.float32) % 5 + rank for rank in range(size))
        for _ in range(3):
            assert run(world, call(Collective.ALLREDUCE, FLOAT32, values, out)) == ""
            assert (out == total).all()
            assert ddl.allreduce(1, op="sum") == size  # Python's calls are made in between
        assert run(world, call(Collective.ALLREDUCE, FLOAT32, values, values)) == ""
        assert (values == total).all()
        numbers = np.full(length, me, np.int64)
        everybody = np.empty((size, length), np.int64)
        assert run(world, call(Collective.ALLGATHER, INT64, numbers, everybody, part=length)) == ""
        assert (everybody == np.arange(size)[:, None]).all()
        part = np.empty(length, np.int64)
        assert run(world, call(Collective.REDUCESCATTER, INT64, everybody, part, part=length)) == ""
        assert (part == me * size).all()
    assert run(world, call(Collective.BARRIER, FLOAT32)) == ""


def messages():
    """Each rank sends to the next one, and receives from the one before, in another thread than Python's own."""
    world, me, size = ddl.world(), ddl.rank(), ddl.size()

    def exchange():
        text = ctypes.create_string_buffer(1024)
        for length in (1, 100_000):
            given, taken = np.full(length, me, np.int64), np.empty(length, np.int64)
            works = []
            for described in (
                call(Collective.RECV, INT64, None, taken, root=(me - 1) % size),
                call(Collective.SEND, INT64, given, None, root=(me + 1) % size),
            ):
                work = ctypes.c_void_p()
                begun = table().start(address_of(world), ctypes.byref(described), ctypes.byref(work), text, len(text))
                assert begun == 0, text.value
                works.append(work)
            for work in works:
                assert table().wait(address_of(world), work, text, len(text)) == 0, text.value
            assert (taken == (me - 1) % size).all()

    thread = threading.Thread(target=exchange)
    thread.start()
    thread.join()
    ddl.barrier()


def refusals():
    world = ddl.world()
    x = np.ones(3, np.float32)
    assert "InvalidArgument: there is no collective number 99" in run(world, call(99, FLOAT32, x, x))
    assert "InvalidArgument: op must be one of" in run(world, call(Collective.ALLREDUCE, FLOAT32, x, x, op=77))
    assert "there is no type number 99" in run(world, call(Collective.ALLREDUCE, 99, x, x))
    assert "no other rank" in run(world, call(Collective.SEND, FLOAT32, x, root=ddl.rank()))
    assert run(world, call(Collective.ALLREDUCE, FLOAT32, x, x)) == ""
    assert (x == ddl.size()).all()


def lose_a_rank():
    x = np.ones(1000, np.float32)
    assert run(ddl.world(), call(Collective.ALLREDUCE, FLOAT32, x, x)) == ""
    ranks.meet()
    if ddl.rank() == 1:
        os._exit(3)
    why = run(ddl.world(), call(Collective.ALLREDUCE, FLOAT32, x, x))
    assert why.startswith("PeerLost: [rank 0/2") and "lost rank 1" in why
    assert run(ddl.world(), call(Collective.ALLREDUCE, FLOAT32, x, x)) == why
    return "told"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives(size):
    ranks.run(size, collectives)


@pytest.mark.parametrize("size", [2, 3])
def test_messages(size):
    ranks.run(size, messages)


def test_what_cannot_be_is_refused_before_anything_is_sent():
    ranks.run(2, refusals)


@pytest.mark.faults
def test_a_lost_rank_is_named_and_named_again():
    answers = ranks.run(2, lose_a_rank, may_die=[1])
    assert answers == ["told", ranks.Died(3)]
