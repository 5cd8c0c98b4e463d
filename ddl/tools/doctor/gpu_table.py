"""Writes what is known of GPUs: a table for ``ddl doctor``, a line for each for ``ddl topo``."""

from __future__ import annotations

from typing import List

from ddl.tools.doctor.checks.verdict import present
from ddl.tools.doctor.facts import Facts
from ddl.tools.doctor.gpu_facts import GpuFacts, HostGpus
from ddl.tools.doctor.phrases import bytes_text

__all__ = ["copy_rate", "gpu_lines", "gpu_table"]


def copy_rate(bytes_per_s: float) -> str:
    """Return ``52.3 GB/s`` or ``-`` for nothing."""
    value = bytes_per_s / 1e9
    return "-" if not bytes_per_s else f"{value:.0f} GB/s" if value >= 100 else f"{value:.3g} GB/s"


def gpu_table(facts: Facts) -> List[str]:
    """Return a line for each GPU of each host; nothing if there is none."""
    rows = [
        (
            host.name,
            str(gpu.number),
            gpu.name or "?",
            bytes_text(gpu.memory) if gpu.memory else "-",
            str(gpu.link) or "-",
            str(gpu.numa_node) if gpu.numa_node >= 0 else "-",
            str(gpu.copy_engines) if gpu.copy_engines >= 0 else "-",
            copy_rate(gpu.registering),
            copy_rate(gpu.down),
            copy_rate(gpu.up),
            copy_rate(gpu.both_down),
            copy_rate(gpu.both_up),
        )
        for host, local in present(facts)
        for gpu in local.gpus.devices
    ]
    if not rows:
        return []
    head = ("host", "GPU", "name", "memory", "link", "NUMA", "engines", "registering", "down", "up")
    shown = [(*head, "down, both", "up, both"), *rows]
    wide = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    aligned = [str.ljust, str.rjust, str.ljust, str.rjust, str.ljust, *[str.rjust] * 7]
    return ["  ".join(pad(word, width) for pad, word, width in zip(aligned, row, wide)).rstrip() for row in shown]


def gpu_lines(gpus: HostGpus) -> List[str]:
    """Return ``GPU 0 (NVIDIA H200): PCIe 5 x16, NUMA node 0, 52 GB/s down, 50 GB/s up`` for each GPU."""
    if not gpus.devices and gpus.problem and not gpus.missing:
        return [f"no GPU can be used: {gpus.problem}"]
    return [_line(gpu) for gpu in gpus.devices]


def _line(gpu: GpuFacts) -> str:
    title = f"GPU {gpu.number}" + (f" ({gpu.name})" if gpu.name else "")
    if gpu.problem:
        return f"{title}: {gpu.problem}"
    known = [
        str(gpu.link),
        f"NUMA node {gpu.numa_node}" if gpu.numa_node >= 0 else "",
        f"{copy_rate(gpu.down)} down, {copy_rate(gpu.up)} up",
        f"{copy_rate(gpu.both_down)} and {copy_rate(gpu.both_up)} at once",
    ]
    return f"{title}: {', '.join(text for text in known if text)}"
