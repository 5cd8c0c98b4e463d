"""What the adapters (``ddl_torch`` and the others) use of ``ddl``, besides its public names."""

from __future__ import annotations
