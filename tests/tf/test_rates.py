"""``RatesCallback``: what TensorBoard shows of two ranks that train with Keras, one of which is slow."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import ranks

keras = pytest.importorskip("keras")
pytest.importorskip("tensorboard")

from event_files import scalars_in  # noqa: E402 (it needs TensorBoard, which may not be there)

pytestmark = pytest.mark.processes
NAMES = ("ddl_steps_per_second", "ddl_waiting", "ddl_late_seconds")
SLOW, BATCHES, EPOCHS = 0.02, 12, 2


class SlowBatches(keras.callbacks.Callback):
    """Rank 1 takes some time before each batch."""

    def on_train_batch_begin(self, batch, logs=None):
        import ddl

        time.sleep(SLOW * ddl.rank())


def fit(folder):
    import ddl_tensorflow.keras as ddl

    with pytest.raises(ddl.InvalidArgument, match="every=0 is not a number of batches from 1 on"):
        ddl.callbacks.RatesCallback(every=0)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(ddl.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", steps_per_execution=1)
    x = np.ones((4 * BATCHES, 2), np.float32)
    callbacks = [
        ddl.callbacks.MetricAverageCallback(),
        SlowBatches(),
        ddl.callbacks.RatesCallback(every=5),
        keras.callbacks.TensorBoard(f"{folder}/rank{ddl.rank()}", update_freq="batch", write_graph=False),
    ]
    history = model.fit(x, x[:, :1], batch_size=4, epochs=EPOCHS, verbose=0, callbacks=callbacks, shuffle=False)
    return {name: history.history[name] for name in NAMES}


@pytest.mark.slow
@pytest.mark.alone
def test_what_tensorboard_shows(tmp_path: Path) -> None:
    histories = ranks.run(2, fit, str(tmp_path))
    shown = [scalars_in(tmp_path / f"rank{rank}" / "train") for rank in (0, 1)]
    for history, numbers in zip(histories, shown):
        for name in NAMES:
            assert sorted(numbers[f"epoch_{name}"]) == list(range(EPOCHS))
            assert list(numbers[f"epoch_{name}"].values()) == pytest.approx(history[name], rel=1e-6)
            # Of each epoch, from the fifth batch on.
            batches = [epoch * BATCHES + batch for epoch in range(EPOCHS) for batch in range(4, BATCHES)]
            assert len(numbers[f"batch_{name}"]) == len(batches)
        assert all(rate > 0 for rate in history["ddl_steps_per_second"])
    fast, slow = (history["ddl_waiting"][-1] for history in histories)
    assert 1 >= fast > slow >= 0
    assert "epoch_loss" in shown[0]
