"""JAX's library (csrc/mpi) by itself, without JAX: what cannot be says why. What can be: tests/jax_ranks."""

from __future__ import annotations

import ctypes
import os
import runpy
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setenv("MPITRAMPOLINE_LIB", "another")  # so that it is not set
    names = runpy.run_path(str(ROOT / "ddl_jax" / "_library.py"))
    assert os.environ["MPITRAMPOLINE_LIB"] == "another"
    return ctypes.CDLL(names["_path"]())


def text(library):
    buffer, length = ctypes.create_string_buffer(1024), ctypes.c_int()
    library.MPIABI_Error_string(1, buffer, ctypes.byref(length))
    assert len(buffer.value) == length.value
    return buffer.value.decode()


def constant(library, name):
    return ctypes.c_int64.in_dll(library, f"MPIABI_{name}")


def test_what_jax_does_not_call_says_so(library):
    assert library.MPIABI_Bcast() != constant(library, "SUCCESS").value
    assert text(library) == "MPI_Bcast: DDL offers what JAX calls, and not this"


def test_constants_differ(library):
    """Of those that a function can be given: one handle must not be taken for another."""
    for names in (
        ("SUM", "PROD", "MIN", "MAX", "LAND", "MAXLOC", "OP_NULL"),
        ("INT8_T", "UINT8_T", "FLOAT", "DOUBLE", "C_COMPLEX", "C_DOUBLE_COMPLEX", "INT", "LOGICAL", "DATATYPE_NULL"),
        ("COMM_WORLD", "COMM_SELF", "COMM_NULL"),
    ):
        assert len({constant(library, name).value for name in names}) == len(names)


def test_calls_before_init_fail_and_say_why(library):
    """Also on a communicator that could not be made: XLA does not look whether it could."""
    world, total, kind = (constant(library, name) for name in ("COMM_WORLD", "SUM", "FLOAT"))
    x = np.ones(3, np.float32)
    data = ctypes.c_void_p(x.ctypes.data)
    assert library.MPIABI_Allreduce(data, data, 3, kind, total, world) == 1
    assert text(library) == "MPI_Init was not called"
    part = ctypes.c_int64(0)
    assert library.MPIABI_Comm_split(world, 0, 0, ctypes.byref(part)) == 1
    assert library.MPIABI_Allreduce(data, data, 3, kind, total, part) == 1
    assert text(library) == "MPI_Init was not called"
    assert library.MPIABI_Comm_free(ctypes.byref(part)) == 0
    assert (x == 1).all()


def test_a_type_that_ddl_does_not_know_is_refused(library):
    world, total, kind = (constant(library, name) for name in ("COMM_WORLD", "SUM", "LONG_DOUBLE"))
    assert library.MPIABI_Allreduce(None, None, 3, kind, total, world) == 1
    assert text(library).startswith("MPI_Allreduce: DDL does not know MPI's data type number ")


def test_a_count_that_did_not_fit_into_32_bits_is_refused(library):
    """XLA passes 64 bits on as 32: of 2 GiB or more a negative number is left. It was a crash."""
    world, kind = (constant(library, name) for name in ("COMM_WORLD", "BYTE"))
    assert library.MPIABI_Allgather(None, 0, kind, None, ctypes.c_int(-(2**31)), kind, world) == 1
    assert text(library).startswith("MPI_Allgather: JAX has passed the count -2147483648, ")
    assert "in parts below 2 GiB" in text(library)
