"""``join``: a rank without more data calls it while others go on."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import tensorflow as tf

import ddl
from ddl.adapter.operations import CompletedOperation, Waitable
from ddl_tensorflow._call import call
from ddl_tensorflow._collectives import Array, as_written
from ddl_tensorflow._step_numbers import begin_anew
from ddl_tensorflow._where import global_process_set, process_sets

__all__ = ["join"]


@as_written
def join() -> tf.Tensor:
    """Supply zeros to what the other ranks reduce until all have called this; return the rank that did so last: int32.

    Collective on all ranks, blocking, for as long as others like. Averages still divide by the number of all ranks.
    Whatever else is submitted meanwhile (all-gather, broadcast, all-to-all, reduce-scatter) is an error on the other
    ranks. Afterwards weights differ: broadcast those of the last rank. Also in a graph, where it runs after whatever it
    is made to depend on.

    Raises ``InvalidState`` if this rank has joined already; ``PeerLost`` and its like as ``allreduce``, though not
    ``CollectiveTimeout`` while all ranks live.

    >>> last = ddl_tensorflow.join()
    >>> ddl_tensorflow.broadcast_variables(model.variables, root_rank=int(last))
    """
    ddl.rank()

    def wait(_: List[Array], __: Any, ___: bool) -> Waitable:
        process_sets.open()
        last = global_process_set.negotiator.join().wait()
        begin_anew()  # ranks have made different numbers of steps
        return CompletedOperation(np.array(last, np.int32))

    (last,) = call(wait, [], [tf.int32], always=True, at_once=False)
    last.set_shape([])
    return last
