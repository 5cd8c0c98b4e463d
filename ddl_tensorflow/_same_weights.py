"""Compares the weights of all ranks when the second step begins (ddl/adapter/same_weights.py).

Not the first: many scripts send them after it, as Horovod's say, since a model may have no weights before. Then each
rank has begun anew with those of rank 0.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any, Counter, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

import ddl
from ddl.adapter.generation import ranks_may_change
from ddl.adapter.operations import Operation
from ddl.adapter.same_weights import differing_rows, row_of_weights, warn
from ddl_tensorflow import _operations
from ddl_tensorflow._digests import digest

__all__ = ["NamedVariable", "SecondStep", "comparison", "readable"]

Array = np.ndarray[Any, Any]
NamedVariable = Tuple[str, tf.Variable]  #: variables without a name of their own all have the same

_ADVICE = (
    "Send them on all ranks before the second step: by BroadcastGlobalVariablesCallback(0) in fit, or by "
    "broadcast_variables(variables, root_rank=0)"
)


class SecondStep:
    """When it begins: of an optimizer, or of a tape in a graph; eagerly each step has a new tape. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: Counter[Optional[str]] = collections.Counter()
        self._began = False

    def begins(self, name: Optional[str]) -> bool:
        """Count a step; return whether it is the one in which weights are compared. The same on all ranks.

        ``name``: of the place where TensorFlow averages. Nothing is compared where ranks come and go: those that join
        get the weights of the others.
        """
        if self._began:
            return False
        with self._lock:
            self._steps[name] += 1
            if self._began or self._steps[name] < 2:
                return False
            self._began = True
        return not ranks_may_change()


def comparison(named: Sequence[NamedVariable]) -> Operation[Array]:
    """Return what compares variables. Its result is a 0."""
    digests = [digest(variable.numpy()) for _, variable in named]
    gathering = _operations.allgather(row_of_weights(ddl.rank(), digests))

    def finish(rows: Any) -> Array:
        table = gathering.finish(rows)
        text = differing_rows(table, [name for name, _ in named], _ADVICE)
        if text is not None:
            warn(ddl.world(), text, teller=int(table[0, 0]))
        return np.zeros((), np.uint8)

    return dataclasses.replace(gathering, finish=finish)


def readable(named: Sequence[Tuple[str, Any]]) -> List[NamedVariable]:
    """Return those whose values can be read beside a graph that runs: none in a session of TF1."""
    with tf.init_scope():
        eager = tf.executing_eagerly()
    return [(name, variable) for name, variable in named if eager and isinstance(variable, tf.Variable)]
