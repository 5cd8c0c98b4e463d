"""For the tests in this folder: DDL with torch, on a GPU with ``--driver real``, else the same programs on the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
