"""The version, written once: packaging, the extension and ``ddl.__version__`` all read this line."""

from __future__ import annotations

__version__ = "0.1.0"
