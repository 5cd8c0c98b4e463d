"""``python -m benchmarks.gpu.probe QUESTION``: asks the driver one question, in this process, and prints the answer.

Each question is a process of its own with a deadline, as some may hang (a wait for a word, above all) and some may
break the context. The answers are what DDL's choices for arrays on GPUs stand on: docs/gpu.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Callable, Dict, List

from benchmarks.gpu import probe_costs, probe_memory, probe_waits
from benchmarks.gpu.driver import CudaDriver, CudaError
from ddl.tools.files import write_json

__all__ = ["QUESTIONS", "main"]

#: Numbers of cuda.h, which do not change.
ATTRIBUTES = {
    "copy engines at once": 40,
    "unified addressing": 41,
    "pageable memory access": 88,
    "host pointer for registered memory": 91,
    "host memory can be registered": 99,
    "uses the host's page tables": 100,
    "NUMA node of the host": 134,
    "multiprocessors": 16,
}


def attributes(driver: CudaDriver) -> Dict[str, Any]:
    """What the driver says of itself and of the device."""
    import ctypes

    version = ctypes.c_int()
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    bus = ctypes.create_string_buffer(32)
    if driver.has("cuDeviceGetPCIBusId"):
        driver.call("cuDeviceGetPCIBusId", bus, len(bus), driver.device)
    known = {name: driver.attribute(number) for name, number in ATTRIBUTES.items()}
    words = all(driver.has(f"cuStream{verb}Value32_v2") for verb in ("Write", "Wait"))
    return {
        "name": driver.name(),
        "devices": driver.count,
        "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "bus": bus.value.decode(),
        "words": words,
        "attributes": known,
        "connections": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", ""),
    }


QUESTIONS: Dict[str, Callable[[CudaDriver], Dict[str, Any]]] = {
    "attributes": attributes,
    "register": probe_memory.register,
    "shared": probe_memory.shared,
    "remove": probe_memory.remove,
    "copies": probe_memory.copies,
    "memory": probe_memory.memory,
    "costs": probe_costs.costs,
    "visible": probe_costs.visible,
    "wait": probe_waits.wait,
    "depth": probe_waits.depth,
    "free": probe_waits.free,
}


def _rows(answer: Dict[str, Any], indent: str = "") -> List[str]:
    rows: List[str] = []
    for name, value in answer.items():
        if isinstance(value, dict):
            rows += [f"{indent}{name}:", *_rows(value, indent + "  ")]
        else:
            rows.append(f"{indent}{name}: {f'{value:.4g}' if isinstance(value, float) else value}")
    return rows


def main() -> int:
    """Ask; return the exit status: 1 if the driver refused something."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question", choices=sorted(QUESTIONS))
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    try:
        driver = CudaDriver()
        answer = QUESTIONS[given.question](driver)
    except CudaError as error:
        print(f"probe {given.question}: {error}", file=sys.stderr)
        return 1
    print("\n".join(_rows(answer)))
    if given.json:
        write_json(given.json, {**answer, "fake": driver.is_fake}, quiet=True)
    sys.stdout.flush()
    os._exit(0)  # nothing is unregistered or freed: the driver does that, in its own order


if __name__ == "__main__":
    sys.exit(main())
