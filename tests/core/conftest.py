"""``wire``: two ends of a connection that is not encrypted yet, and somebody between them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Iterator

import pytest
from core.tls_wire import Wire

from ddl import _core


@pytest.fixture
def wire() -> Iterator[Wire]:
    with ExitStack() as stack:
        _core.load_openssl("")
        yield Wire(stack)
