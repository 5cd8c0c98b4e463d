"""Choosing among algorithms (select, table), after measuring them (measure/) or simulating them (simulate/)."""

from __future__ import annotations
