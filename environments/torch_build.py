"""Installs torch where it is missing: its build for CPUs, if any index offers one, and says what is downloaded.

PyPI's own build is for CUDA: 0.5 GB, and 2.5 GB of NVIDIA's packages. Demo, tests and benchmarks compute on the CPU.
PyTorch has builds for CPUs in an index of its own; ``DDL_TORCH_CPU_INDEX`` names another one, or none if it is empty.
The arguments are passed on to pip.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
_QUICK = ["--retries", "0", "--timeout", "10"]  # to learn whether an index can be reached

Report = Dict[str, Any]  #: what ``pip install --report`` writes


def brings_cuda(report: Report) -> bool:
    """Return whether packages for CUDA would be installed."""
    names = [str(entry["metadata"]["name"]).lower() for entry in report["install"]]
    return any(name.startswith(("nvidia-", "cuda-", "triton")) for name in names)


def choose(
    ask: Callable[[Sequence[str]], Optional[Report]], cpu_index: str = _CPU_INDEX
) -> Tuple[List[str], Optional[bool]]:
    """Return pip's options for the smaller build, and whether it is for CUDA; None: nothing is known.

    ``ask``: returns pip's report for further options, None if it fails.
    """
    report = ask([])
    if report is None or not brings_cuda(report):
        return [], None if report is None else False
    # A version for CPUs counts as a newer one of the same number: so it is taken where both are offered.
    further = ["--extra-index-url", cpu_index]
    other = ask([*further, *_QUICK]) if cpu_index else None
    return (further, False) if other is not None and not brings_cuda(other) else ([], True)


def main() -> int:
    """Install it; return the exit status."""
    if importlib.util.find_spec("torch") is not None:
        return 0
    given = [*sys.argv[1:], "torch"]

    def ask(further: Sequence[str]) -> Optional[Report]:
        command = [*_PIP, "--quiet", "--dry-run", "--report", "-", *further, *given]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        report: Optional[Report] = json.loads(done.stdout) if done.returncode == 0 else None
        return report

    further, cuda = choose(ask, os.environ.get("DDL_TORCH_CPU_INDEX", _CPU_INDEX))
    if cuda:
        print(
            "torch for CUDA is downloaded, as no index offers a build for CPUs: 0.5 GB, and 2.5 GB of NVIDIA's "
            "packages (docs/compatibility.md: a torch without CUDA)",
            flush=True,
        )
    elif cuda is not None:
        print("torch for CPUs is downloaded: 200 MB", flush=True)
    return subprocess.call([*_PIP, *further, *given])


if __name__ == "__main__":
    sys.exit(main())
