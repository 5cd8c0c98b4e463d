"""This rank's numbers as tensors that TensorFlow computes when it runs them, even in a graph older than the job."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import numpy as np
import tensorflow as tf

import ddl
from ddl.adapter.operations import CompletedOperation, Waitable
from ddl.adapter.process_sets import ProcessSet
from ddl_tensorflow._call import call
from ddl_tensorflow._collectives import Array, as_written
from ddl_tensorflow._where import process_sets
from ddl_tensorflow.basics import process_set_by_id

__all__ = ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]


def _value(function: Callable[[], int], name: Optional[str], verb: str) -> tf.Tensor:
    def run(_: List[Array], __: Any, ___: bool) -> Waitable:
        return CompletedOperation(np.array(function(), np.int32))

    (value,) = call(run, [], [tf.int32])
    value.set_shape([])
    return tf.identity(value, name=name or verb)


def _set(number: int) -> ProcessSet:
    process_sets.open()
    return process_set_by_id(number)


@as_written
def size_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """Return the number of ranks in the process set of that number: int32, shape ()."""
    return _value(lambda: _set(process_set_id).size(), name, "size_op")


@as_written
def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """Return 1 if this rank is in the process set of that number, else 0: int32, shape ()."""
    return _value(lambda: int(_set(process_set_id).included()), name, "process_set_included_op")


@as_written
def rank_op(name: Optional[str] = None) -> tf.Tensor:
    """Return this rank's number in the job: int32, shape ()."""
    return _value(ddl.rank, name, "rank_op")


@as_written
def local_rank_op(name: Optional[str] = None) -> tf.Tensor:
    """Return this rank's number on its host: int32, shape ()."""
    return _value(ddl.local_rank, name, "local_rank_op")


@as_written
def local_size_op(name: Optional[str] = None) -> tf.Tensor:
    """Return the number of ranks on this host: int32, shape ()."""
    return _value(ddl.local_size, name, "local_size_op")
