"""What DDL does where versions of TensorFlow may differ."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

TYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool", "complex64"]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5)], ids=str)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("known", [True, False], ids=["quick", "as TensorFlow"])
def test_eager_tensors_are_those_that_tensorflow_makes(monkeypatch, known: bool, dtype: str, shape) -> None:
    from ddl_tensorflow import _compat

    if known:
        device = tf.zeros(1).device
        assert device.endswith("CPU:0") and _compat._maker(device) is not None
    else:
        monkeypatch.setattr(_compat, "_maker", lambda device: None)
        device = tf.zeros(1).device
    numbers = np.arange(int(np.prod(shape))).reshape(shape).astype(tf.as_dtype(dtype).as_numpy_dtype)
    tensor, wanted = _compat.eager_tensor(numbers, device), tf.convert_to_tensor(numbers)
    assert (type(tensor), tensor.dtype, tensor.shape, tensor.device) == (
        type(wanted),
        wanted.dtype,
        wanted.shape,
        wanted.device,
    )
    assert tensor.numpy().tobytes() == wanted.numpy().tobytes()
    assert (tensor == tensor).numpy().all()  # an op takes it


def test_what_is_no_array_is_converted() -> None:
    from ddl_tensorflow._compat import eager_tensor

    for value in (3.5, np.float32(2), [1, 2], "text"):
        tensor = eager_tensor(value, tf.zeros(1).device)
        assert tensor.dtype == tf.convert_to_tensor(value).dtype and tensor.shape == np.shape(value)
