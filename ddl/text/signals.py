"""Names of signals, for messages about processes that a signal has killed."""

from __future__ import annotations

import signal

__all__ = ["signal_name"]


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal between SIGRTMIN and SIGRTMAX has no name of its own
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
