"""What TensorFlow adds to an all-reduce: ``ddlrun -np 2 python -m benchmarks.frameworks.tensorflow_op``.

float32, by several ways in turns: ``ddl.allreduce_`` on an array of numpy, in the order of calls; the same by a name
that ranks agree on first, as all ops do; eagerly; ten that need one another in a ``tf.function``, by the compiled op
and by ``tf.numpy_function``; and a function without any. Results are checked before anything is timed. What counts is
the slowest rank's time for one all-reduce; printed are medians, and what an op adds to a function, which is less than
``function`` by a share of what TensorFlow takes to call one. Exit status: 1 if a sum is wrong.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any, Callable, Dict, List
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import ddl
import ddl_tensorflow
from ddl_tensorflow import _call, _operations
from ddl_tensorflow._where import Where

SIZES = (4, 64 << 10, 1 << 20, 16 << 20)
CHAIN = 10  #: all-reduces in one call of a function
ROUNDS = 100


def by_numpy(count: int) -> Callable[[], Any]:
    x = np.ones(count, np.float32)
    return lambda: ddl.allreduce_(x, op=ddl.Average)


def by_name(count: int) -> Callable[[], Any]:
    x, where = np.ones(count, np.float32), Where()
    return lambda: (where.run(_operations.allreduce(x, ddl.Average), f"named.{count}"), x)[1]


def eagerly(count: int) -> Callable[[], Any]:
    x = tf.ones([count])
    return lambda: ddl_tensorflow.allreduce(x, name=f"eager.{count}")


def in_a_function(count: int) -> Callable[[], Any]:
    @tf.function
    def chain(x: tf.Tensor) -> tf.Tensor:
        for _ in range(CHAIN):
            x = ddl_tensorflow.allreduce(x)
        return x

    x = tf.ones([count])
    return lambda: chain(x)


def no_op(count: int) -> Callable[[], Any]:
    """What TensorFlow takes to call a function."""
    x, same = tf.ones([count]), tf.function(tf.identity)
    return lambda: same(x)


def without_the_op(count: int) -> Callable[[], Any]:
    """As ``in_a_function``; it is traced when it is first called, here."""
    step = in_a_function(count)
    with mock.patch.object(_call, "native_op", lambda: None):
        step()
    return step


WAYS: Dict[str, Callable[[int], Callable[[], Any]]] = {
    "numpy": by_numpy,
    "named": by_name,
    "eager": eagerly,
    "function": in_a_function,
    "numpy_function": without_the_op,
    "no op": no_op,
}
ONCE = ("function", "numpy_function", "no op")  #: what is called once instead of CHAIN times


def medians(steps: Dict[str, Callable[[], Any]]) -> List[float]:
    """Return the seconds of one all-reduce by each way."""
    durations: List[List[float]] = [[] for _ in steps]
    for number in range(ROUNDS + 3):
        for (name, step), seconds in zip(steps.items(), durations):
            times = 1 if name in ONCE else CHAIN
            ddl.barrier()
            begin = time.perf_counter()
            for _ in range(times):
                step()
            if number >= 3:
                seconds.append((time.perf_counter() - begin) / CHAIN)
    slowest = ddl.allreduce(np.array(durations), op=ddl.Max)
    return [statistics.median(row) for row in slowest.tolist()]


def main() -> int:
    """Print a line for each size on rank 0; return the exit status."""
    ddl_tensorflow.init()
    if ddl.rank() == 0:
        print("bytes     " + "".join(f"{name:>16}" for name in WAYS) + "  function - no op   (us)", flush=True)
    for nbytes in SIZES:
        steps = {name: make(nbytes // 4) for name, make in WAYS.items()}
        for name, step in steps.items():
            if not np.array_equal(np.asarray(step()), np.ones(nbytes // 4, np.float32)):
                print(f"{name}: a wrong sum of {nbytes} bytes", file=sys.stderr)
                return 1
        times = dict(zip(WAYS, medians(steps)))
        if ddl.rank() == 0:
            row = "".join(f"{1e6 * times[name]:16.1f}" for name in WAYS)
            print(f"{nbytes:<10}{row}{1e6 * (times['function'] - times['no op']):18.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
