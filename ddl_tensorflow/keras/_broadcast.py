"""All ranks begin with the same model and optimizer: ``BroadcastGlobalVariablesCallback``; ``WeightAverageCallback``.

Values are exchanged as arrays of numpy between two batches, by calls in the same order on all ranks (``ddl.world()``),
so this works with every backend of Keras. A model has variables that do not exist before its first batch: of layers
without an input shape, of its optimizer. What exists is sent when ``fit`` begins, the rest after the first batch.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional

import keras
import numpy as np

import ddl
from ddl.adapter.consistency import check_consistent
from ddl.adapter.step_record import note_step
from ddl_tensorflow import _keras_backend as backend

__all__ = ["BroadcastGlobalVariablesCallback", "WeightAverageCallback"]

_ADVICE = "Build and compile the same model in the same way on every rank, before fit"


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Give all ranks the variables of ``root_rank`` when ``fit`` begins. Collective, blocking; on every rank.

    These are weights, statistics, states of random generators (of Dropout, say), the optimizer's slots, its learning
    rate and its number of steps: so also after ``load_model`` or ``load_weights``, on the root alone or on all ranks.
    An optimizer without slots makes them for this. Weights that do not exist before the first batch (no input
    shape is known) are sent after it. At the end of each epoch the root's variables that no gradient changes are
    sent again: statistics of BatchNormalization, which each rank has of its own batches. So then all have one model.

    ``device`` is Horovod's, and not used. ``local_variables``: one variable or a list of them, of this rank alone: not
    sent, not compared; as are those that the optimizer has been told of by ``register_local_var``.

    Raises ``InvalidArgument``, on all ranks, if models, optimizers or roots differ (the first difference is named), if
    Keras' own optimizer is to train a model with Keras' own ``train_step``, which would average nothing, or for
    ``compile(jit_compile=True)``.

    >>> model.fit(x, y, callbacks=[ddl.callbacks.BroadcastGlobalVariablesCallback(0)])
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        several = isinstance(local_variables, (list, tuple))
        self._local: List[Any] = list(local_variables) if several else [local_variables]
        self._sent: Dict[str, Any] = {}
        self._complete = False

    def register_local_var(self, var: Any) -> None:
        """Leave out a variable from now on."""
        self._local = [*self._local, var]

    def on_train_begin(self, logs: Any = None) -> None:
        self._sent, self._complete = {}, False
        optimizer, model = self.model.optimizer, self.model
        if model.built and model.trainable_variables and optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
        self._send(self._mistake())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._complete:
            self._complete = True
            self._send("")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        backend.publish(self.model)
        kept = {id(variable) for variable in self.model.non_trainable_variables}
        self._broadcast(variable for variable in self._sent.values() if id(variable) in kept)

    def _needs_averages(self) -> bool:
        return True

    def _mistake(self) -> str:
        """Return what is wrong on this rank."""
        if self.root_rank not in range(ddl.size()):
            return f"root_rank={self.root_rank!r} is no rank of a job of {ddl.size()}"
        own_step = type(self.model).train_step is not keras.Model.train_step
        averages = backend.distributed(self.model.optimizer)
        if not averages and not own_step and self._needs_averages() and ddl.size() > 1:
            name = self.model.optimizer.__class__.__name__
            if backend.is_tensorflow():
                return (
                    f"the model is compiled with Keras' own {name}, which averages nothing; pass {name} wrapped in "
                    "DistributedOptimizer to compile()"
                )
            return f"Keras runs on {keras.backend.backend()}, so nothing is averaged; use WeightAverageCallback instead"
        if averages:
            from ddl_tensorflow._xla import settle

            return settle(self.model)
        return ""

    def _send(self, mistake: str) -> None:
        backend.publish(self.model)
        optimizer = self.model.optimizer
        new = backend.state_of(
            self.model, optimizer, [*self._local, *backend.local_variables(optimizer), *self._sent.values()]
        )
        averages = "averages gradients" if backend.distributed(optimizer) else "averages nothing"
        lines = [f"root_rank={self.root_rank}", f"the optimizer {optimizer.__class__.__name__}, which {averages}"]
        lines += [f"{name}: {backend.described(variable)}" for name, variable in new.items()]
        check_consistent(ddl.world(), "fit: ranks do not train the same", lines, _ADVICE, mistake)
        self._broadcast(new.values())
        self._sent.update(new)

    def _broadcast(self, variables: Iterable[Any]) -> None:
        for variable in variables:
            value = backend.read(variable)
            ddl.world().broadcast_(value.reshape(-1).view(np.uint8), root=self.root_rank)
            if ddl.rank() != self.root_rank:
                backend.write(variable, value)


class WeightAverageCallback(BroadcastGlobalVariablesCallback):
    """Train with a plain optimizer: average weights and slots over the ranks, after every ``every`` batches.

    For Keras on torch or JAX, where there is no ``DistributedOptimizer``; it works on TensorFlow, too. With ``every=1``
    and SGD, also with momentum, this is what averaging gradients would be, up to rounding. With Adam and the like, or
    with more batches between two averages, it is not: it is local SGD (Lin et al., "Don't Use Large Mini-Batches, Use
    Local SGD", 2020). None: at the end of each epoch only; averages are made then in any case. What is not of floating
    point (number of steps, states of random generators) stays each rank's own after ``fit`` has begun.

    It broadcasts when ``fit`` begins, as ``BroadcastGlobalVariablesCallback``, which it takes the place of. Collective,
    blocking: every rank trains equally many batches (``steps_per_epoch=``). Raises ``InvalidArgument`` as that does,
    and for an ``every`` that is no number from 1 on.

    >>> model.fit(x, y, callbacks=[ddl.callbacks.WeightAverageCallback()])
    """

    def __init__(
        self, root_rank: int = 0, every: Optional[int] = 1, device: str = "", local_variables: Any = None
    ) -> None:
        super().__init__(root_rank, device, local_variables)
        if every is not None and (not isinstance(every, int) or every < 1):
            raise ddl.InvalidArgument(f"WeightAverageCallback: every={every!r} is not a number of batches from 1 on")
        self.every = every
        self._batches = 0

    def _needs_averages(self) -> bool:
        return False

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        self._batches += 1
        if self.every is not None and self._batches % self.every == 0:
            self._average()
        if not backend.distributed(self.model.optimizer):  # which notes its steps by itself
            note_step()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.every is None or self._batches % self.every:
            self._average()

    def _average(self) -> None:
        """Average all that is of floating point: one operation for each type."""
        backend.publish(self.model)
        kinds: Dict[str, List[Any]] = {}
        for variable in self._sent.values():
            value = backend.read(variable)
            if backend.is_floating(value):
                kinds.setdefault(str(value.dtype), []).append((variable, value))
        for pairs in kinds.values():
            flat = np.concatenate([value.reshape(-1) for _, value in pairs])
            ddl.world().allreduce_(flat, op=ddl.Average)
            start = 0
            for variable, value in pairs:
                backend.write(variable, flat[start : start + value.size].reshape(value.shape))
                start += value.size
