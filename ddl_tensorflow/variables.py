"""Gives every rank the variables of one rank: before training, or from a checkpoint; eagerly, in a function, in TF1."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional

import tensorflow as tf

import ddl
from ddl.adapter.consistency import check_consistent
from ddl.adapter.operations import Operation, grouped
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl_tensorflow import _operations
from ddl_tensorflow._collectives import Array, as_written, dense, in_place
from ddl_tensorflow._names import op_name
from ddl_tensorflow._where import Where, global_process_set

__all__ = ["BroadcastGlobalVariablesHook", "broadcast_", "broadcast_global_variables", "broadcast_variables"]


@as_written
@naming_rank
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrite ``variables`` on every rank with those of rank ``root_rank``, bit by bit. Collective.

    variables: of TensorFlow or Keras, of any types but strings: ``model.variables``, ``optimizer.variables``; the same
    number, shapes and types on every rank. An optimizer of Keras has its slots after its first step, or ``build``.
    Eagerly it blocks, and raises ``InvalidArgument``, on all ranks, if variables or roots differ: the first that does
    is named. In a graph it returns the op that does it, which then raises ``CollectiveMismatch``. ``inplace`` is
    Horovod's, and not used.

    >>> ddl_tensorflow.broadcast_variables(model.variables, root_rank=0)
    """
    targets = list(variables)
    if tf.executing_eagerly():
        _check(targets, root_rank, process_set)
        _assign(targets, root_rank, None, process_set)
        return None
    written = _assign(targets, root_rank, op_name(None, "broadcast_variables"), process_set)
    return tf.group(*written)


@as_written
@naming_rank
def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> List[tf.Tensor]:
    """As ``broadcast_variables``, under a ``name``; return the new values, in a graph those that are there afterwards.

    Ranks are compared as for ``broadcast``: all get ``CollectiveMismatch``.
    """
    targets = list(variables)
    written = _assign(targets, root_rank, op_name(name, "broadcast_"), process_set)
    with tf.control_dependencies(written):
        return [tf.identity(tf.convert_to_tensor(variable)) for variable in targets]


def _assign(variables: List[Any], root_rank: int, known: Optional[str], process_set: ProcessSet) -> List[Any]:
    if not variables:
        return []

    def together(where: Where, targets: List[Array]) -> Operation[Any]:
        root = where.index(root_rank)
        return grouped([_operations.broadcast(target, root, str(root_rank)) for target in targets], "broadcast")

    values = in_place([dense(variable, "broadcast_variables") for variable in variables], process_set, together, known)
    return [variable.assign(value) for variable, value in zip(variables, values)]


def _check(variables: List[Any], root_rank: int, process_set: ProcessSet) -> None:
    """Raise ``InvalidArgument``, on all ranks, for what they do not do alike."""
    Where(process_set)
    communicator = process_set.communicator
    if communicator is None:
        raise ddl.InvalidArgument(f"broadcast_variables: this rank is not in {process_set!r}")
    assert process_set.ranks is not None
    mistake = "" if root_rank in process_set.ranks else f"root_rank={root_rank!r} is not in {process_set!r}"
    # A name has numbers that count what its process has made before: only shapes and types must be the same.
    lines = [f"number {i} {_dtype(variable)} of shape {tuple(variable.shape)}" for i, variable in enumerate(variables)]
    advice = "Make the same call, for the same model, on every rank"
    names = [str(getattr(variable, "path", None) or getattr(variable, "name", "")) for variable in variables]
    try:
        check_consistent(communicator, "broadcast_variables", [f"root_rank={root_rank}", *lines], advice, mistake)
    except ddl.InvalidArgument as error:
        listed = ", ".join(f"{i} {name!r}" for i, name in enumerate(names[:50]))
        error.args = (f"{error}. The variables of this rank: {listed}",)
        raise


def _dtype(variable: Any) -> str:
    return tf.as_dtype(variable.dtype).base_dtype.name


@naming_rank
def broadcast_global_variables(root_rank: int) -> Any:
    """Return an op that gives all global variables of a graph of TF1 the values of rank ``root_rank``.

    They have to be initialised on all ranks. Raises ``InvalidState`` in eager mode, where nobody knows all variables.
    """
    if tf.executing_eagerly():
        raise ddl.InvalidState(
            "broadcast_global_variables: there are no global variables in eager mode; pass yours to "
            "broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Give all ranks the global variables of rank ``root_rank`` when a session of TF1 has been made, or restored.

    ``device`` is Horovod's, and not used.

    >>> hooks = [ddl_tensorflow.BroadcastGlobalVariablesHook(0)]
    >>> with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
    ...     session.run(step)
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self._op: Any = None

    def begin(self) -> None:
        """Add the op to the graph; also to another one, if the hook is used again."""
        if self._op is None or self._op.graph is not tf.compat.v1.get_default_graph():
            self._op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self._op)
