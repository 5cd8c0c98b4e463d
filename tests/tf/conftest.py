"""TensorFlow for its tests: skipped, with the reason, where it cannot be had. Its log says only what is wrong."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import List

import pytest

HERE = Path(__file__).parent

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # nothing of oneDNN and CPU features in every rank's output


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    if importlib.util.find_spec("tensorflow") is not None:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="TensorFlow is not installed: there is no wheel for every Python"))
