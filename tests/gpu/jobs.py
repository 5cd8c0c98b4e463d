"""What the jobs of this folder begin with: their device, their streams, and groups of ``torch.distributed``."""

from __future__ import annotations

import contextlib
import os
from typing import Any, ContextManager, Dict, Tuple

import drivers
import torch
from process_groups import begin


def environment() -> Dict[str, str]:
    """Return the variables of a rank."""
    return {**drivers.variables(), "GLOO_SOCKET_IFNAME": "lo", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def device() -> torch.device:
    """Return the device of this rank's tensors; all ranks share one GPU."""
    return torch.device(drivers.device())


def group(backend: str = "ddl") -> Tuple[Any, int, int]:
    """Begin the default group of the job; return ``torch.distributed``, rank and size."""
    return begin(os.path.join(os.environ["RANKS_FOLDER"], f"store.{backend}"), backend)


def side_stream() -> ContextManager[Any]:
    """Make a new stream of high priority current for a while, behind all that the current one has; no-op on the CPU."""
    if device().type == "cpu":
        return contextlib.nullcontext()
    stream = torch.cuda.Stream(priority=-1)
    stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)


def settle() -> None:
    """Wait until the GPU has done all that it was given."""
    if device().type == "cuda":
        torch.cuda.synchronize()
