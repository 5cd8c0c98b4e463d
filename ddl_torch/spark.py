"""``TorchEstimator``: trains a torch model on a Spark DataFrame, on ranks that are tasks of Spark.

>>> from ddl_torch.spark import TorchEstimator
>>> estimator = TorchEstimator(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
...     loss=torch.nn.functional.cross_entropy, feature_cols=["pixels"], label_cols=["digit"],
...     batch_size=32, epochs=5, num_proc=2, work_dir="/mnt/shared")
>>> fitted = estimator.fit(df)
>>> fitted.transform(df).select("digit__output")
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

import ddl_torch as ddl
from ddl.adapter.metrics import MetricAverage
from ddl.spark.estimator import FittedModel, FrameEstimator, FrameTraining, RowShare, Trained

__all__ = ["TorchEstimator", "TorchModel"]


class TorchEstimator(FrameEstimator):
    """Trains a torch model on a DataFrame: ``fit(df)`` returns a ``TorchModel``. On CPUs.

    ``loss(output, label)``: a function or a module. ``optimizer``: one of the model's parameters. Floating-point
    columns come as torch's default type, whole numbers as int64. A step is that of ``DistributedOptimizer``: the ranks'
    mean gradients. The model and the optimizer that are passed stay as they are.
    What the parameters mean: ``ddl.spark.estimator.FrameEstimator``.
    """

    def _training(self) -> Tuple[Callable[..., Optional[Trained]], Tuple[Any, ...]]:
        losses = list(self.loss) if isinstance(self.loss, (list, tuple)) else [self.loss] * len(self.plan.label_cols)
        return _train, (self.model, self.optimizer, losses)  # pickled together: the optimizer keeps its parameters

    def _fitted(self, trained: Trained) -> TorchModel:
        model = copy.deepcopy(self.model)
        model.load_state_dict(trained.state)
        return TorchModel(model.eval(), trained, self.plan)


class TorchModel(FittedModel):
    """A torch model that ``TorchEstimator`` has trained, as a Transformer; see ``FittedModel``."""

    def _predict(self) -> Tuple[Callable[..., List[np.ndarray]], Any]:
        return _outputs, self.model


def _train(training: FrameTraining, model: Any, optimizer: Any, losses: Sequence[Any]) -> Optional[Trained]:
    """Train as a rank."""
    torch.manual_seed(training.seed + ddl.rank())  # dropout
    # All ranks have unpickled the same bytes, so nothing is broadcast.
    averaging = ddl.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    train, *validation = training.rows()
    history: Dict[str, List[float]] = {"loss": []}
    for epoch in range(training.epochs):
        average, batches = MetricAverage("loss"), train.batches(training.batch_size, training.order(len(train), epoch))
        model.train()
        for batch in batches:
            averaging.zero_grad()
            loss = _loss(model, losses, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            averaging.step()
            average.update({"loss": loss.detach()}, weight=len(batch))
        history["loss"].append(average.compute()["loss"])
        for rows in validation:
            history.setdefault("val_loss", []).append(_validated(model, losses, rows, training.batch_size))
        if training.verbose and ddl.rank() == 0:
            print(f"epoch {epoch + 1}/{training.epochs}: {_last(history)}", flush=True)
    if ddl.rank() != 0:
        return None
    first = next(train.batches(1))
    shapes = [output.shape[1:] for output in _outputs(model.eval(), first.features)]
    return Trained({name: value.detach().cpu() for name, value in model.state_dict().items()}, history, shapes)


def _loss(model: Any, losses: Sequence[Any], rows: RowShare) -> torch.Tensor:
    outputs = _as_list(model(*map(_tensor, rows.features)))
    if not len(outputs) == len(losses) == len(rows.labels):
        raise ddl.InvalidArgument(
            f"TorchEstimator: {len(outputs)} outputs of the model, {len(losses)} losses and {len(rows.labels)} "
            "label_cols; there is one loss and one label for each output"
        )
    parts = [loss(output, _tensor(label)) for loss, output, label in zip(losses, outputs, rows.labels)]
    return torch.stack(parts).sum()


def _validated(model: Any, losses: Sequence[Any], rows: RowShare, size: int) -> float:
    average = MetricAverage("loss")
    model.eval()
    with torch.no_grad():
        for batch in rows.batches(size):
            average.update({"loss": _loss(model, losses, batch)}, weight=len(batch))
    return average.compute()["loss"]


def _outputs(model: Any, features: Sequence[np.ndarray]) -> List[np.ndarray]:
    with torch.no_grad():
        return [output.numpy() for output in _as_list(model(*map(_tensor, features)))]


def _as_list(outputs: Any) -> List[torch.Tensor]:
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _tensor(array: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    return tensor.to(torch.get_default_dtype() if tensor.is_floating_point() else torch.int64)


def _last(history: Dict[str, List[float]]) -> str:
    return ", ".join(f"{name} {values[-1]:.4f}" for name, values in history.items())
