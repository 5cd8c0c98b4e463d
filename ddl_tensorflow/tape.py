"""``DistributedGradientTape``: a ``tf.GradientTape`` whose gradients are averages over the ranks."""

from __future__ import annotations

import functools
from typing import Any, Iterable, List, Optional, Type

import tensorflow as tf

import ddl
from ddl import Average
from ddl.adapter.buckets import BUCKET_BYTES
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl.reduce_op import OpLike
from ddl_tensorflow._where import global_process_set
from ddl_tensorflow.compression import Compression
from ddl_tensorflow.gradients import Averaging, Groups
from ddl_tensorflow.verbs import as_written

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _Distributed:
    """What is in the class of a distributed tape, before its old class."""

    _ddl: Averaging

    @as_written
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As ``tf.GradientTape.gradient``, averaged over the ranks. Collective."""
        # Only the class that a tape gets, of this one and its old class, has such a method above it.
        own = super().gradient(target, sources, output_gradients, *args, **kwargs)  # type: ignore[misc]
        averages = self._ddl(tf.nest.flatten(own), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, averages)

    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of a source on this rank, each rank its own; all ranks say so alike."""
        self._ddl.register_local(source)


@functools.cache
def _distributed(kind: Any) -> Type[Any]:
    return type(f"Distributed{kind.__name__}", (_Distributed, kind), {})


@naming_rank
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: OpLike = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    bucket_bytes: int = BUCKET_BYTES,
) -> Any:
    """Make the gradients of ``gradtape`` averages over the ranks; return it. Before, in or after its ``with``.

    The tape that is passed becomes distributed. ``gradient`` is collective from then on: every rank calls it for the
    same sources; their gradients must be alike in number, shape, type and kind. Inside a ``tf.function`` they are sent
    while the backward pass goes on; eagerly, when it has ended. ``jacobian`` and the like stay the rank's own.

    The arguments are those of ``DistributedOptimizer``. ``register_local_source(variable)`` keeps its gradient on this
    rank; with ``scale_local_gradients`` it is divided by the number of ranks, as if all had the same.

    Raises ``InvalidArgument``; where TensorFlow runs it, ``CollectiveMismatch``, ``PeerLost`` and the like.

    >>> tape = ddl_tensorflow.DistributedGradientTape(tape)
    >>> gradients = tape.gradient(loss, model.trainable_variables)
    """
    if not isinstance(gradtape, tf.GradientTape) or isinstance(gradtape, _Distributed):
        raise ddl.InvalidArgument(
            f"DistributedGradientTape needs a tf.GradientTape that is not distributed yet, not a "
            f"{type(gradtape).__name__}"
        )
    gradtape._ddl = Averaging(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=num_groups if groups is None else groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        bucket_bytes=bucket_bytes,
    )
    kind: Any = type(gradtape)
    gradtape.__class__ = _distributed(kind)
    return gradtape


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: OpLike = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Optional[Iterable[Any]] = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As ``DistributedGradientTape``; the gradients of ``local_layers``, one or many layers, stay on this rank."""
    tape = DistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in variables_of(local_layers):
        tape.register_local_source(variable)
    return tape


def variables_of(layers: Any) -> List[Any]:
    """Return what is trained in one layer, or in each of some; None: nothing."""
    several = [] if layers is None else [layers] if hasattr(layers, "trainable_variables") else list(layers)
    return [variable for layer in several for variable in layer.trainable_variables]
