"""Looks at the GPUs of this host: ``python -m ddl.tools.doctor.gpu_probe SYS [FIRST]``, started by gpus.py.

A process of its own, because it loads the driver: that may take long, fail, or never answer. Each result is printed at
once, a JSON object per line, so that what was found is not lost with the process. ``SYS``: where sysfs is mounted.
``FIRST``: the GPU to begin with. After a GPU that has failed, the process begins anew, as it can use no other GPU.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from ddl.tools.doctor.gpu_facts import GpuFacts, PciLink

__all__ = ["LIMIT", "main", "pci_link"]

LIMIT = 20.0  #: seconds; afterwards this process is of no use to anybody
_PIECE_BYTES = 2 << 20  # those of large all-reduces between hosts (ddl/tuning/select.py)
_SAMPLE = 0.1  # seconds, for each of three measurements of a GPU
_PATIENCE = 1.0  # seconds with a GPU on which nothing ends


def main() -> int:
    """Print what is found; return the exit status."""
    signal.alarm(round(2 * LIMIT))  # ends this process, if nobody else has
    from ddl import _core  # which may be what is wrong

    sys_directory, first = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    _core.configure_gpu_driver(os.environ.get("DDL_CUDA_LIBRARY", ""), False)
    if not first:
        _tell("begins")
    state = _core.survey_gpu_driver()
    if not first:
        _tell("driver", version=state.version, count=state.count, problem=state.problem, missing=state.missing)
    for number in range(first, state.count):
        _tell("begins", number=number)
        gpu = _look_at(_core, number, Path(sys_directory))
        _tell("gpu", gpu=dataclasses.asdict(gpu))
        if gpu.problem and number + 1 < state.count:
            sys.stdout.flush()
            again = (sys.executable, "-m", "ddl.tools.doctor.gpu_probe", sys_directory, str(number + 1))
            os.execv(sys.executable, again)
    sys.stdout.flush()
    os._exit(0)  # a driver whose GPU stands still may wait for it at the end of the process


def _tell(kind: str, **fields: Any) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


def _look_at(core: Any, number: int, sys_directory: Path) -> GpuFacts:
    from ddl.errors import ResourceError

    try:
        told = core.describe_gpu(number)
    except ResourceError as error:
        return GpuFacts(number, problem=str(error))
    gpu = GpuFacts(
        number,
        told.name,
        address=told.pci_address.lower(),
        memory=told.memory_bytes,
        capability=f"{told.major}.{told.minor}" if told.major >= 0 else "",
        copy_engines=told.copy_engines,
        compute_mode=max(told.compute_mode, 0),
    )
    folder = sys_directory / "bus" / "pci" / "devices" / gpu.address
    gpu = dataclasses.replace(gpu, numa_node=_number(folder / "numa_node", told.numa_node))
    try:
        reached = core.measure_gpu(number, _PIECE_BYTES, _SAMPLE, _PATIENCE)
    except ResourceError as error:
        return dataclasses.replace(gpu, problem=str(error), link=pci_link(folder))
    # An idle GPU slows its link down, so it is looked at when copies have just ended.
    return dataclasses.replace(
        gpu,
        link=pci_link(folder),
        registering=reached.registering,
        refusal=reached.refusal,
        down=reached.down,
        up=reached.up,
        both_down=reached.both_down,
        both_up=reached.both_up,
        words_problem=reached.words_problem,
    )


def pci_link(folder: Path) -> PciLink:
    """Read the link of a PCI device from its folder in sysfs. What is not there, or makes no sense, is 0."""
    lanes, most_lanes = (_number(folder / f"{which}_link_width", 0) for which in ("current", "max"))
    speeds = [_speed(folder / f"{which}_link_speed") for which in ("current", "max")]
    return PciLink(lanes if lanes <= 32 else 0, most_lanes if most_lanes <= 32 else 0, *speeds)  # 63, 255: not known


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path, otherwise: int) -> int:
    text = _text(path)
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else otherwise


def _speed(path: Path) -> float:
    match = re.match(r"[0-9]{1,4}(?:\.[0-9]+)?", _text(path))  # of "32.0 GT/s PCIe"
    return float(match[0]) if match else 0.0


if __name__ == "__main__":
    sys.exit(main())
