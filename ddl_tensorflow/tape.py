"""``DistributedGradientTape``: a ``tf.GradientTape`` whose gradients are averages over the ranks."""

from __future__ import annotations

import functools
from typing import Any, List, Type

import tensorflow as tf

import ddl
from ddl import Average
from ddl.adapter.buckets import BUCKET_BYTES
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl.reduce_op import OpLike
from ddl_tensorflow._collectives import as_written
from ddl_tensorflow._noted_steps import note
from ddl_tensorflow._where import global_process_set
from ddl_tensorflow.compression import Compression
from ddl_tensorflow.gradients import GradientAveraging, Groups

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _DistributedTape:
    """What is in the class of a distributed tape, before its old class."""

    _ddl: GradientAveraging

    @as_written
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As ``tf.GradientTape.gradient``, averaged over the ranks. Collective."""
        # Only the class that a tape gets, of this one and its old class, has such a method above it.
        own = super().gradient(target, sources, output_gradients, *args, **kwargs)  # type: ignore[misc]
        averages = self._ddl(tf.nest.flatten(own), tf.nest.flatten(sources))
        note(self._ddl, averages)  # what the script does with them, nobody tells
        return tf.nest.pack_sequence_as(sources, averages)

    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of a source on this rank, each rank its own; all ranks say so alike."""
        self._ddl.register_local(source)


@functools.cache
def _distributed(kind: Any) -> Type[Any]:
    return type(f"Distributed{kind.__name__}", (_DistributedTape, kind), {})


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
    local_layers: Any = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> Any:
    """Make the gradients of ``gradtape`` averages over the ranks; return it. Before, in or after its ``with``.

    The tape that is passed becomes distributed. ``gradient`` is collective from then on: every rank calls it for the
    same sources; their gradients must be alike in number, shape, type and kind. Inside a ``tf.function`` they are sent
    while the backward pass goes on; eagerly, when it has ended. ``jacobian`` and the like stay the rank's own.

    The arguments are those of ``DistributedOptimizer``. The gradients of ``local_layers``, a layer or a list of layers,
    stay on this rank, and so does that of what is given to ``register_local_source(variable)``. With
    ``scale_local_gradients`` they are divided by the number of ranks, as if all ranks had the same.

    Raises ``InvalidArgument``; where TensorFlow runs it, ``CollectiveMismatch``, ``PeerLost`` and the like.

    >>> tape = ddl_tensorflow.DistributedGradientTape(tape)
    >>> gradients = tape.gradient(loss, model.trainable_variables)
    """
    if not isinstance(gradtape, tf.GradientTape) or isinstance(gradtape, _DistributedTape):
        raise ddl.InvalidArgument(
            f"DistributedGradientTape needs a tf.GradientTape that is not distributed yet, not a "
            f"{type(gradtape).__name__}"
        )
    gradtape._ddl = GradientAveraging(
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
    tape: Any = gradtape
    for variable in variables_of(local_layers):
        tape.register_local_source(variable)
    return tape


#: Horovod's name of the form with ``local_layers``.
PartialDistributedGradientTape = DistributedGradientTape


def variables_of(layers: Any) -> List[Any]:
    """Return what is trained in one layer, or in each of some; None: nothing."""
    several = [] if layers is None else [layers] if hasattr(layers, "trainable_variables") else list(layers)
    return [variable for layer in several for variable in layer.trainable_variables]
