"""``hvd.elastic`` for TensorFlow: states of variables, of a session of TF1, and of a model of Keras.

States in general, ``run`` and ``fenced`` are in ddl/adapter/, which knows no framework.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np
import tensorflow as tf

import ddl
from ddl.adapter.elastic import Arrays, Handler, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from ddl.adapter.fence import fenced
from ddl_tensorflow._public import public_names

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "TensorFlowKerasState"]
__all__ += ["TensorFlowState", "fenced", "run"]

Values = List[np.ndarray[Any, Any]]


def _read(variables: Sequence[Any]) -> Values:
    return [np.array(tf.convert_to_tensor(variable)) for variable in variables]


def _write(variables: Sequence[Any], values: Values) -> None:
    for variable, value in zip(variables, values):
        variable.assign(value)


class TensorFlowState(ObjectState):
    """The state of a training: variables, and plain data by any names, ``state.epoch += 1``.

    variables: default: all global variables of a graph of TF1. session: in which these are; default: the current one,
    in TF1. ``sync`` gives all ranks the variables of rank 0. Raises ``InvalidArgument`` without variables in eager
    mode.

    >>> state = ddl_tensorflow.elastic.TensorFlowState([weights, bias], epoch=0, batch=0)
    """

    def __init__(self, variables: Optional[Sequence[Any]] = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None and tf.executing_eagerly():
            raise ddl.InvalidArgument("TensorFlowState: in eager mode nobody knows all variables; pass variables=[…]")
        self.session: Any = session or (None if tf.executing_eagerly() else tf.compat.v1.get_default_session())
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        super().__init__(**kwargs)
        self._names = ("variables", *self._names)
        self.save()

    def handler(self, value: Any) -> Optional[Handler]:
        """Return how ``value`` is kept; None for plain data."""
        if value is not self.variables:
            return None
        return _VARIABLES if self.session is None else Arrays(self._read, self._write)

    def _read(self, variables: Sequence[Any]) -> Values:
        return [np.array(value) for value in self.session.run(list(variables))]

    def _write(self, variables: Sequence[Any], values: Values) -> None:
        for variable, value in zip(variables, values):
            variable.load(value, self.session)


class TensorFlowKerasState(ObjectState):
    """The state of a training: a model of Keras, its optimizer, and plain data by any names, ``state.epoch += 1``.

    optimizer: default: that of ``compile``. The model is built; its optimizer is built here if it is not. ``backend``
    is Horovod's, and not used. ``sync`` gives all ranks the variables of rank 0. Raises ``InvalidArgument`` for a model
    that has no variables yet.

    >>> state = ddl_tensorflow.elastic.TensorFlowKerasState(model, optimizer, epoch=0, batch=0)
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        chosen = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if not model.built or not model.variables:
            raise ddl.InvalidArgument(
                "TensorFlowKerasState: the model has no variables yet; give it an Input, or call it once"
            )
        if chosen is not None and not chosen.built:
            chosen.build(model.trainable_variables)
        super().__init__(**{"model": model, **({} if chosen is None else {"optimizer": chosen}), **kwargs})

    def handler(self, value: Any) -> Optional[Handler]:
        """Return how ``value`` is kept; None for plain data."""
        return _OF_KERAS if hasattr(value, "variables") else None


_VARIABLES = Arrays(_read, _write)
#: Of whatever has ``variables``.
_OF_KERAS = Arrays(lambda value: _read(value.variables), lambda value, values: _write(value.variables, values))


__dir__ = public_names(globals())
