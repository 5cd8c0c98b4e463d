"""What TensorBoard shows of a folder of event files."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
from tensorboard.util.tensor_util import make_ndarray


def scalars_in(folder: Path) -> Dict[str, Dict[int, float]]:
    """Return, by tag and step, the numbers that torch or TensorFlow has written there."""
    files = EventAccumulator(str(folder), size_guidance={TENSORS: 0}).Reload()
    numbers = {tag: {event.step: event.value for event in files.Scalars(tag)} for tag in files.Tags()["scalars"]}
    for tag in files.Tags()[TENSORS]:
        tensors = {event.step: make_ndarray(event.tensor_proto) for event in files.Tensors(tag)}
        if all(tensor.shape == () and tensor.dtype.kind == "f" for tensor in tensors.values()):
            numbers[tag] = {step: float(tensor) for step, tensor in tensors.items()}
    return numbers
