"""Choosing among algorithms; later: measuring, and simulating what cannot be measured here."""

from __future__ import annotations
