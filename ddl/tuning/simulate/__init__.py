"""Plans in virtual time: how long a collective, or a training step, takes on a machine that is described."""

from __future__ import annotations
