"""Kills ranks of a training again and again, and says how long the others stood still."""

from __future__ import annotations
