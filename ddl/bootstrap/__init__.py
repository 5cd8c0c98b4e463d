"""How a rank comes into its job: who it is (environ, launched), its connections (connect), and what it hears of
failures (agent). What all ranks share is their store: ``ddl.store``."""

from __future__ import annotations
