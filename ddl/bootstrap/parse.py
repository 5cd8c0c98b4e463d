"""Parses the values of environment variables (environ.py). ValueError says what a wrong value must be."""

from __future__ import annotations

import re

__all__ = [
    "LEVELS",
    "congestion",
    "connections",
    "cores",
    "dimensions",
    "gpu_wait",
    "incarnation",
    "level",
    "microseconds",
    "rails",
    "seconds",
    "seconds_or_none",
    "silence",
    "size",
    "size_or_automatic",
    "switch",
    "wire",
]

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
LEVELS = ("error", "warning", "info", "debug")
#: "int8" is not for a whole job: its caller must keep what it drops, and add it the next time.
_WIRES = ("float32", "bf16", "fp16")


def seconds(text: str) -> float:
    """Return a number of seconds above 0 and below 1e9."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:  # also refuses nan
        raise ValueError("a number of seconds above 0" + (" and below 1e9" if value > 0 else ""))
    return value


def seconds_or_none(text: str) -> float:
    """Return a number of seconds; "0" is none."""
    return 0.0 if text == "0" else seconds(text)


def silence(text: str) -> float:
    """Return a number of seconds from 4 to 3600."""
    value = seconds(text)
    if not 4 <= value <= 3600:
        raise ValueError("a number of seconds from 4 to 3600")
    return value


def size(text: str) -> int:
    """Return a number of bytes given like ``64M``; ValueError otherwise."""
    match = re.fullmatch(r"(\d{1,15})\s*([KMG]?)(i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError("a number of bytes, with K, M or G (powers of 1024) if you like")
    return int(match[1]) << _UNITS[match[2].upper()]


def microseconds(text: str) -> int:
    """Return whole microseconds; -1 is automatic."""
    if not re.fullmatch(r"-1|\d{1,9}", text, re.ASCII):
        raise ValueError("whole microseconds, or -1 for automatic")
    return int(text)


def cores(text: str) -> int:
    """Return a number of cores from 1 to 64; 0 is automatic."""
    if not re.fullmatch(r"\d|[1-5]\d|6[0-4]", text, re.ASCII):
        raise ValueError("a number of cores from 1 to 64, or 0 for automatic")
    return int(text)


def incarnation(text: str) -> int:
    """Return the number of a process that joins a job that runs."""
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ValueError("a whole number from 0 up")
    return int(text)


def switch(text: str) -> bool:
    """Return whether it is on."""
    if text not in ("0", "1"):
        raise ValueError("0 (off) or 1 (on)")
    return text == "1"


def level(text: str) -> str:
    """Return how much is logged, in lower case."""
    if text.lower() not in LEVELS:
        raise ValueError("one of " + ", ".join(LEVELS))
    return text.lower()


def dimensions(text: str) -> str:
    """Return the layout of the ranks as it is, as in 4x2."""
    if not re.fullmatch(r"[1-9]\d{0,6}(x[1-9]\d{0,6})*", text, re.ASCII):
        raise ValueError('sizes joined by "x", innermost first, as in 4x2')
    return text


def wire(text: str) -> str:
    """Return how float32 is written on the wire; "": as it is."""
    if text not in _WIRES:
        raise ValueError("float32, bf16 or fp16")
    return "" if text == "float32" else text


def gpu_wait(text: str) -> str:
    """Return what waits for results on GPUs."""
    if text not in ("host", "stream"):
        raise ValueError("host or stream")
    return text


def connections(text: str) -> int:
    """Return a number of connections from 1 to 16."""
    if not re.fullmatch(r"[1-9]|1[0-6]", text, re.ASCII):
        raise ValueError("a number from 1 to 16")
    return int(text)


def size_or_automatic(text: str) -> int:
    """Return a number of bytes; -1 is automatic."""
    return -1 if text == "-1" else size(text)


def rails(text: str) -> int:
    """Return a number of networks up to 16; 0 is all."""
    if not re.fullmatch(r"\d|1[0-6]", text, re.ASCII):
        raise ValueError("a number from 0 (all) to 16")
    return int(text)


def congestion(text: str) -> str:
    """Return the name of a congestion control that this kernel has."""
    try:
        with open("/proc/sys/net/ipv4/tcp_available_congestion_control", encoding="ascii") as known:
            names = known.read().split()
    except OSError:
        return text  # the kernel will say
    if text not in ("auto", "system", *names):
        raise ValueError("auto, system, " + " or ".join(names))
    return text
