"""``SecondStepWeights``: compares the weights of all ranks when the second step begins (ddl/adapter/same_weights.py).

Not the first: many scripts send them after it, as Horovod's say, since a model may have no weights before. Then each
rank has begun anew with those of rank 0.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any, Counter, Dict, Optional

import numpy as np
import tensorflow as tf

import ddl
from ddl.adapter.generation import ranks_may_change
from ddl.adapter.operations import Operation
from ddl.adapter.same_weights import differing_rows, row_of_weights, warn
from ddl_tensorflow import _operations
from ddl_tensorflow._digests import digest

__all__ = ["SecondStepWeights", "readable"]

Array = np.ndarray[Any, Any]

_ADVICE = (
    "Send them on all ranks before the second step: by BroadcastGlobalVariablesCallback(0) in fit, or by "
    "broadcast_variables(variables, root_rank=0)"
)


class SecondStepWeights:
    """The weights of one optimizer, or of one tape in a graph. (Eagerly each step has a new tape.) For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: Counter[Optional[str]] = collections.Counter()
        self._compared = False

    def comparison(self, name: Optional[str], variables: Dict[str, tf.Variable]) -> Optional[Operation[Array]]:
        """Return what compares ``variables`` if a second step begins now. Its result is a 0.

        ``name``: of the place where TensorFlow averages. Nothing is compared where ranks come and go: those that join
        get the weights of the others.
        """
        with self._lock:
            self._steps[name] += 1
            if self._compared or self._steps[name] < 2:
                return None
            self._compared = True
        if ranks_may_change():
            return None
        gathering = _operations.allgather(
            row_of_weights(ddl.rank(), [digest(each.numpy()) for each in variables.values()])
        )

        def finish(rows: Any) -> Array:
            table = gathering.finish(rows)
            text = differing_rows(table, list(variables), _ADVICE)
            if text is not None:
                warn(ddl.world(), text, teller=int(table[0, 0]))
            return np.zeros((), np.uint8)

        return dataclasses.replace(gathering, finish=finish)


def readable(variables: Dict[str, Any]) -> Dict[str, tf.Variable]:
    """Return those whose values can be read beside a graph that runs: none in a session of TF1."""
    with tf.init_scope():
        eager = tf.executing_eagerly()
    return {name: each for name, each in variables.items() if eager and isinstance(each, tf.Variable)}
