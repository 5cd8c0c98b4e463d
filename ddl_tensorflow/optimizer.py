"""``DistributedOptimizer``: an optimizer of Keras or of TF1 whose steps use the average of all ranks' gradients."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

import ddl
from ddl import Average
from ddl.adapter.buckets import BUCKET_BYTES
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl.reduce_op import OpLike
from ddl_tensorflow import _keras_optimizer, tf1
from ddl_tensorflow._accumulation import Accumulation
from ddl_tensorflow._steps import Steps
from ddl_tensorflow._weights_check import WeightsCheck
from ddl_tensorflow._where import global_process_set
from ddl_tensorflow.compression import Compression
from ddl_tensorflow.gradients import GradientAveraging, Groups

__all__ = ["DistributedAdasumOptimizer", "DistributedOptimizer"]


@naming_rank
def DistributedOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: OpLike = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    check: int = 0,
    check_every: int = 0,
) -> Any:
    """Make ``optimizer`` distributed and return it: every step uses the averages of all ranks' gradients.

    Every rank wraps its own, of the same model. After a step every rank has the same weights, to the bit, if it had
    them before: broadcast them at the start. Gradients are averaged in buckets, where TensorFlow has them; in a graph
    each is sent as soon as its gradients are there, while the backward pass goes on.

    optimizer: of Keras 3 (``keras.optimizers``, a LossScaleOptimizer too), for ``fit`` and ``apply_gradients``; or a
        ``tf.compat.v1.train.Optimizer``. It is changed in place and keeps its state. Saved by Keras, it is what it was
        before: a program that loads the model needs no DDL, and wraps it again to go on distributed.
    name: how the gradients are called, in errors and on the timeline; alike on all ranks. Default: by the op's name.
    compression: "fp16" or "bf16", or ``ddl.Compression.fp16`` or ``bf16``: gradients are cast to that before they are
        sent, and added up so.
    sparse_as_dense: make sparse gradients (``tf.IndexedSlices``) dense and average them as such. Else the ranks
        exchange the rows that they have.
    backward_passes_per_step: gradients of so many calls are added up here before they are sent, and only then are
        variables changed. The optimizer's iterations, and ``global_step`` in TF1, count every call, as with Horovod: a
        schedule of learning rates goes by batches. ``average_aggregated_gradients``: the sum is divided by that number;
        else divide the loss. Sums are dense. In TF1 they are local variables: initialise these, too.
    op: ``ddl.Average``, ``ddl.Sum``, or ``ddl.Adasum``, which combines gradients, variable by variable.
    gradient_predivide_factor: f: gradients are divided by f before they are added up, and by size / f afterwards. For
        gradients whose sum would overflow float16. Only with ``ddl.Average``.
    num_groups, groups: lists of variables; gradients of those of a list are sent together, whatever their size. Or a
        number of such lists to make. ``num_groups`` is an older name for that number.
    process_set: average over its ranks; other ranks keep their gradients to themselves.
    scale_local_gradients: gradients of what was given to ``register_local_var``, which stay on their rank, are divided
        by the number of ranks.
    bucket_bytes: upper bound of a bucket; the first one holds at most 1 MiB. A larger gradient has one for itself.
    check: after every so many steps compare the weights of all ranks, to the bit. It reads all weights once. If they
        differ, all ranks raise ``InvalidState``, which names the first variable that does, with its values.
        ``check_every`` is its older name.
    use_locking, device_dense, device_sparse: Horovod's, and not used.

    All ranks must have a gradient for the same variables, of the same shape, type and kind. A variable that no rank
    has a gradient for keeps None. One that only some ranks have used is an error on all, ``CollectiveMismatch``, that
    says which; multiply such a part of the model by zero instead of leaving it out. After it, as after a lost rank, no
    further gradients can be averaged: a rank may be in another part of its step. Call ``shutdown`` and ``init``.

    A LossScaleOptimizer, around it or inside, decides by the averages: where one rank has infinity, all ranks skip.

    Raises ``InvalidArgument``; ``InvalidState`` before ``init``, at the first step; where TensorFlow runs the step,
    ``CollectiveMismatch``, ``PeerLost``, ``CollectiveTimeout``.

    >>> optimizer = ddl_tensorflow.DistributedOptimizer(keras.optimizers.Adam(1e-3))
    """
    averaging = GradientAveraging(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=num_groups if groups is None else groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        bucket_bytes=bucket_bytes,
        name=name,
    )
    accumulation = Accumulation(backward_passes_per_step, average_aggregated_gradients)
    steps = Steps(averaging, accumulation, WeightsCheck(check, check_every, process_set))
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return tf1.distribute(optimizer, steps)
    if _keras_optimizer.is_keras_optimizer(optimizer):
        return _keras_optimizer.distribute(optimizer, steps)
    raise ddl.InvalidArgument(
        f"DistributedOptimizer needs an optimizer of Keras 3 or of tf.compat.v1.train, not a "
        f"{type(optimizer).__module__}.{type(optimizer).__name__}"
    )


def DistributedAdasumOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
) -> Any:
    """``DistributedOptimizer`` with ``op=ddl.Adasum``."""
    return DistributedOptimizer(
        optimizer,
        name,
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        op=ddl.Adasum,
    )
