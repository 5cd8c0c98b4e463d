"""What adapters stand on: the only door of ``ddl`` for ``ddl_torch`` and its sisters, besides its public names."""

from __future__ import annotations
