"""Which machine a process runs on, as its kernel says."""

from __future__ import annotations

import os
import platform

__all__ = ["boot_id", "host_id"]


def boot_id() -> str:
    """Return what the kernel has called itself since it started, alike in all of its containers; "" if it does not say.

    Source: ``random(4)``; a container can hide ``/proc/sys``.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def host_id() -> str:
    """Ranks of one running kernel and network namespace have the same; others have no way to swap memory."""
    machine = boot_id()
    try:
        return f"{machine}/{os.stat('/proc/self/ns/net').st_ino}" if machine else platform.node()
    except OSError:
        return platform.node()
