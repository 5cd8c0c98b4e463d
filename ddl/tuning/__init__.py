"""Choosing among algorithms, and simulating the plans on a modelled machine; later: measuring."""

from __future__ import annotations
