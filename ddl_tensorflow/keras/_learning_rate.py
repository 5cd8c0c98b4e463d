"""Learning rates by epoch and batch, as Horovod's callbacks set them: a warm-up, and a schedule of one's own.

Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017 (arXiv:1706.02677): section 2.2 for
the warm-up; section 3 for the correction of momentum: a velocity that was summed up with the old rate is multiplied by
new rate / old rate when the rate changes. Horovod changes the factor ``momentum`` for one batch instead. Keras 3
compiles that factor into the training function, so here the velocities themselves are multiplied.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Union

import keras

import ddl

__all__ = ["LearningRateScheduleCallback", "LearningRateWarmupCallback"]

Multiplier = Union[float, Callable[[float], float]]


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Set the learning rate to ``initial_lr * multiplier`` from ``start_epoch`` up to, not with, ``end_epoch``.

    multiplier: a function of the epoch; or a number, to the power of the epochs since ``start_epoch``.
    staircase: True: once an epoch, by its number; False: before every batch, by epoch + batch / steps_per_epoch.
    momentum_correction: see the file's beginning; for optimizers with ``momentum`` (SGD, RMSprop). It is a pass over
        the velocities whenever the rate changes.
    steps_per_epoch: needed for ``staircase=False`` where Keras does not know it.

    Not collective; on every rank alike. The rate is put into the logs as "lr". Raises ``InvalidArgument`` without
    ``initial_lr``, for an optimizer whose rate is a ``LearningRateSchedule``, and where steps_per_epoch is not known.

    >>> drop = ddl.callbacks.LearningRateScheduleCallback(0.1 * ddl.size(), 0.1, start_epoch=30)
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: Multiplier,
        start_epoch: int = 0,
        end_epoch: Optional[int] = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ddl.InvalidArgument(f"{type(self).__name__}: initial_lr is needed: the rate that is multiplied")
        self.initial_lr = initial_lr
        self.multiplier: Callable[[float], float]
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.multiplier = lambda epoch: float(multiplier ** (epoch - start_epoch))
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = self._given_steps = steps_per_epoch
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        rate = getattr(self.model.optimizer, "_learning_rate", None)
        inner = getattr(self.model.optimizer, "inner_optimizer", None)
        if inner is not None:
            rate = getattr(inner, "_learning_rate", None)
        if rate is not None and not isinstance(rate, keras.Variable):
            raise ddl.InvalidArgument(
                f"{type(self).__name__}: the optimizer's learning rate follows {type(rate).__name__}, and nothing else "
                "can set it; give the optimizer a number, or leave out this callback"
            )
        self.steps_per_epoch = self._given_steps or self.params.get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise ddl.InvalidArgument(
                f"{type(self).__name__}: Keras does not know how many batches an epoch has; pass steps_per_epoch"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            assert self.steps_per_epoch is not None
            self._set(self.initial_lr * self.multiplier(epoch + batch / self.steps_per_epoch))
        elif batch == 0:
            self._set(self.initial_lr * self.multiplier(epoch))

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set(self, rate: float) -> None:
        old = self._rate()
        self.model.optimizer.learning_rate = rate
        new = self._rate()  # as it was rounded
        if self.momentum_correction and old not in (0.0, new):
            for velocity in _velocities(self.model.optimizer):
                velocity.assign(velocity * keras.ops.cast(new / old, velocity.dtype))


def _velocities(optimizer: Any) -> List[Any]:
    """Return what an optimizer with ``momentum`` sums up, of which the rate is a factor."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(optimizer, "momentum", 0) or not optimizer.built:
        return []
    slots = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    return [slot for slot in slots if slot is not None]


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the rate from ``initial_lr / size`` to ``initial_lr``, a little with each batch of ``warmup_epochs``.

    ``initial_lr`` is the full rate, usually that of one rank times ``size()``. ``verbose``: 1 prints a line on rank 0
    when it has ended. The rest is as for ``LearningRateScheduleCallback``.

    >>> warmup = ddl.callbacks.LearningRateWarmupCallback(0.1 * ddl.size(), warmup_epochs=5)
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            done = (epoch + 1 / self.steps_per_epoch) / warmup_epochs  # 1 in the last batch
            return (done * (ddl.size() - 1) + 1) / ddl.size()

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch=steps_per_epoch
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose and ddl.rank() == 0:
            print(f"\nEpoch {epoch + 1}: the learning rate has reached {self._rate():g}.")
