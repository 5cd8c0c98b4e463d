"""``DistributedOptimizer`` with the arguments of ``horovod.tensorflow.keras``, and ``load_model``."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import keras

import ddl
from ddl import Average
from ddl.adapter.buckets import BUCKET_BYTES
from ddl.adapter.process_sets import ProcessSet
from ddl.reduce_op import OpLike
from ddl_tensorflow import _keras_backend as backend
from ddl_tensorflow._where import global_process_set
from ddl_tensorflow.compression import Compression

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "load_model"]


def DistributedOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: OpLike = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Optional[Sequence[Any]] = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    local_layers: Any = None,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    check: int = 0,
    check_every: int = 0,
) -> Any:
    """Make a Keras optimizer average gradients over the ranks before it applies them; return it.

    ``ddl_tensorflow.DistributedOptimizer``, with Horovod's order of arguments for Keras; see there.

    local_layers: a layer, or a list of layers, that are built. Their weights are each rank's own: their gradients are
        not averaged, and ``BroadcastGlobalVariablesCallback`` leaves them alone.

    Raises ``ConfigError`` where Keras does not run on TensorFlow, and ``InvalidArgument`` for what is no layer and for
    a layer that is not built.

    >>> model.compile(ddl.DistributedOptimizer(keras.optimizers.SGD(0.1 * ddl.size())), loss)
    """
    arguments = dict(locals())  # they have the same names there
    backend.need_tensorflow("DistributedOptimizer")
    from ddl_tensorflow.optimizer import DistributedOptimizer as make

    layers = _built(arguments.pop("local_layers"))
    distributed = make(**arguments)
    for layer in layers:
        for variable in layer.trainable_variables:
            distributed.register_local_var(variable)
    return distributed


#: Horovod's name of the form with ``local_layers``.
PartialDistributedOptimizer = DistributedOptimizer


def _built(layers: Any) -> List[Any]:
    """Return the layers of ``local_layers`` as a list."""
    several = isinstance(layers, (list, tuple))
    result: List[Any] = list(layers) if several else [] if layers is None else [layers]
    for layer in result:
        if not isinstance(layer, keras.layers.Layer):
            raise ddl.InvalidArgument(f"DistributedOptimizer: local_layers has {layer!r}, which is no layer")
        if not layer.built:
            raise ddl.InvalidArgument(
                f"DistributedOptimizer: the layer {layer.name!r} has no variables yet; build the model before"
            )
    return result


def load_model(
    filepath: Any,
    custom_optimizers: Optional[Sequence[type]] = None,
    custom_objects: Optional[Dict[str, Any]] = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    *,
    compile: bool = True,
    safe_mode: bool = True,
) -> Any:
    """Load a model that ``model.save`` wrote, with its optimizer, slots and all, made a distributed one.

    custom_optimizers: classes of optimizers that are not Keras' own. custom_objects, compile, safe_mode: as
    ``keras.models.load_model`` has them. compression: of the distributed optimizer. legacy_opts: Horovod's; Keras 3 has
    no such optimizers. Not collective: all ranks load the file, or one does and the others build the same model; then
    ``BroadcastGlobalVariablesCallback`` makes them the same. Raises what ``keras.models.load_model`` does,
    ``InvalidArgument`` for ``legacy_opts=True``, and ``ConfigError`` where Keras does not run on TensorFlow.

    >>> model = ddl.load_model("best.keras")
    """
    backend.need_tensorflow("load_model")
    if legacy_opts:
        raise ddl.InvalidArgument("load_model: Keras 3 has no legacy optimizers; leave out legacy_opts=True")
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    known.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known, compile=compile, safe_mode=safe_mode)
    own = getattr(model, "optimizer", None)
    if own is not None and not backend.distributed(own):
        DistributedOptimizer(own, compression=compression)  # in place: it keeps its slots
    return model
