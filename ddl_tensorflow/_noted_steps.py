"""Notes the steps of a training in the rank's record: eagerly at once, in a graph when TensorFlow has ended the step.

A graph needs a call of its own for that. The calls that it has anyway are made when a step begins, and for each bucket.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np
import tensorflow as tf

from ddl.adapter.operations import CompletedOperation, Waitable
from ddl.adapter.step_record import note_step
from ddl_tensorflow._call import call
from ddl_tensorflow._collectives import as_written
from ddl_tensorflow.gradients import GradientAveraging

__all__ = ["note"]

Array = np.ndarray[Any, Any]


@as_written
def note(averaging: GradientAveraging, after: Sequence[Any], taken: Any = True) -> List[tf.Tensor]:
    """Note a step when all gradients (and other tensors) of ``after`` are there, if ``taken`` is then true.

    Returns what a session of TF1 has to run for that. In the graph of a rank that averages with no other one there is
    no call of DDL's, so that XLA can compile it: there this does nothing.
    """
    if tf.executing_eagerly():
        if taken:
            note_step()
        return []
    if not averaging.takes_part:
        return []

    def function(arrays: List[Array], _: Any, __: bool) -> Waitable:
        if arrays[0]:
            note_step()
        return CompletedOperation(arrays[0])

    parts = [part.values if isinstance(part, tf.IndexedSlices) else part for part in after]
    with tf.control_dependencies([part for part in parts if part is not None]):
        return call(function, [tf.cast(taken, tf.int64)], [tf.int64], always=True)
