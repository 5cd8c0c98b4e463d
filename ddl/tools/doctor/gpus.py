"""Asks for the GPUs of this host in a process of its own (gpu_probe.py), which may fail or never answer."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any, Dict, List, Optional, Tuple

from ddl import clock
from ddl.tools.doctor.gpu_facts import GpuFacts, HostGpus, gpus_from_json
from ddl.tools.doctor.gpu_probe import LIMIT

__all__ = ["GpuInquiry"]


class GpuInquiry:
    """A look at this host's GPUs, which goes on beside other work. A context: nothing is left afterwards.

    ``patience``: the most seconds that it takes. ``sys_directory``: where sysfs is mounted.
    """

    def __init__(self, patience: float = LIMIT, sys_directory: str = "/sys") -> None:
        self._patience = min(patience, LIMIT)
        self._deadline = clock.now() + self._patience
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._problem = ""
        command = (sys.executable, "-m", "ddl.tools.doctor.gpu_probe", sys_directory)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            self._problem = f"the process that asks for GPUs cannot be started: {error}"

    def __enter__(self) -> GpuInquiry:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.kill()
        # A process in a call of the kernel that never returns cannot be killed; it is left alone.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def result(self) -> HostGpus:
        """Wait for what is found until the deadline, and return it. Call it once."""
        if self._process is None:
            return HostGpus(missing=False, problem=self._problem)
        try:
            out, err = self._process.communicate(timeout=max(0.0, self._deadline - clock.now()))
            ended = _how_it_ended(self._process.returncode, err)
        except subprocess.TimeoutExpired as expired:
            out, ended = expired.output or b"", f"has not answered for {self._patience:g} s"
        lines = out.decode(errors="replace").splitlines()
        return _gpus([json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")], ended)


def _how_it_ended(status: int, err: bytes) -> str:
    """Return how the process ended, or nothing if it ended well."""
    if status < 0:
        return f"has ended the process that asked by signal {-status}"
    if status > 0:
        said = err.decode(errors="replace").strip().splitlines()
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
            **environ,
        }
    )
    if len(gpus.devices) == count:
        return gpus
    begun = int(last.get("number", len(gpus.devices)))
    lost = [GpuFacts(begun, problem=f"GPU {begun}: the driver {ended}")]
    lost += [GpuFacts(number, problem=f"GPU {number} was not looked at") for number in range(begun + 1, count)]
    return HostGpus(**{**vars(gpus), "devices": (*gpus.devices, *lost)})
