"""How a rank joins its job: who it is (environ, launched), its connections (connect), and news of failures (agent). The
ranks share a store: ``ddl.store``."""

from __future__ import annotations
