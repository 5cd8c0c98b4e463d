"""Asks for the GPUs of this host in a process of its own (gpu_probe.py), which may fail or never answer."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Tuple

from ddl.tools.doctor.gpu_facts import GpuFacts, HostGpus, gpus_from_json
from ddl.tools.doctor.gpu_probe import LIMIT

__all__ = ["GpuInquiry"]


class GpuInquiry:
    """A look at this host's GPUs, which goes on beside other work. A context: nothing is left afterwards.

    ``patience``: the most seconds that it takes. ``sys_directory``: where sysfs is mounted.
    """

    def __init__(self, patience: float = LIMIT, sys_directory: str = "/sys") -> None:
        self._patience = min(patience, LIMIT)
        self._deadline = time.monotonic() + self._patience
        self._out = tempfile.TemporaryFile()
        self._err = tempfile.TemporaryFile()
        command = (sys.executable, "-m", "ddl.tools.doctor.gpu_probe", sys_directory)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err)

    def __enter__(self) -> GpuInquiry:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            # A process in a call of the kernel that never returns cannot be killed; it is left alone.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        self._out.close()
        self._err.close()

    def result(self) -> HostGpus:
        """Wait for what is found until the deadline, and return it. Call it once."""
        try:
            status = self._process.wait(max(0.0, self._deadline - time.monotonic()))
            ended = self._how_it_ended(status)
        except subprocess.TimeoutExpired:
            ended = f"has not answered for {self._patience:g} s"
        self._out.seek(0)
        lines = self._out.read().decode(errors="replace").splitlines()
        return _gpus([json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")], ended)

    def _how_it_ended(self, status: int) -> str:
        """Return how the process ended, or nothing if it ended well."""
        if status < 0:
            return f"has ended the process that asked by signal {-status}"
        if status > 0:
            self._err.seek(0)
            said = self._err.read().decode(errors="replace").strip().splitlines()
            return f"has ended the process that asked: {said[-1] if said else f'status {status}'}"
        return ""


def _gpus(records: List[Dict[str, Any]], ended: str) -> HostGpus:
    """Make one of what was found. ``ended``: how the process ended before it had said everything."""
    kinds: Dict[str, List[Dict[str, Any]]] = {}
    for record in records:
        kinds.setdefault(record["kind"], []).append(record)
    environ: Dict[str, Any] = {"library": os.environ.get("DDL_CUDA_LIBRARY", "")}
    environ["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    if "begins" not in kinds:
        return HostGpus(known=False)  # the native core cannot be loaded, which is said elsewhere
    last = kinds["begins"][-1]
    if "driver" not in kinds:
        return HostGpus(missing=False, problem=f"the driver {ended}", **environ)
    (driver,) = kinds["driver"]
    devices: Tuple[Any, ...] = tuple(record["gpu"] for record in kinds.get("gpu", []))
    count = int(driver["count"])
    gpus = gpus_from_json(
        {
            "missing": driver["missing"],
            "problem": driver["problem"],
            "version": driver["version"],
            "devices": devices,
            "nccl": kinds["nccl"][0]["version"] if "nccl" in kinds else "",
            "nccl_problem": f"NCCL {ended}" if ended and last["what"] == "NCCL" else "",
            **environ,
        }
    )
    if len(gpus.devices) == count:
        return gpus
    begun = int(last.get("number", len(gpus.devices)))
    lost = [GpuFacts(begun, problem=f"GPU {begun}: the driver {ended}")]
    lost += [GpuFacts(number, problem=f"GPU {number} was not looked at") for number in range(begun + 1, count)]
    return HostGpus(**{**vars(gpus), "devices": (*gpus.devices, *lost)})
