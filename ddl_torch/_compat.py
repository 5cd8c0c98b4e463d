"""Where versions of PyTorch differ: the only file of the adapter that may ask which one this is."""

from __future__ import annotations

import datetime
import re
import sys
import warnings
from types import CodeType
from typing import Callable, Optional, Tuple

import torch
from torch._C._dynamo import eval_frame
from torch.distributed import AllreduceOptions, default_pg_timeout

__all__ = [
    "NEWEST",
    "TAKES_NO_WORK",
    "mark_written",
    "never_compile",
    "newer_than_tested",
    "no_reconfigure",
    "question_of_tracing",
    "storage_users",
    "timeout_given",
    "warn_if_newer",
]

#: The newest release of torch that the tests run with; ``environments/torch.txt`` installs it.
NEWEST = (2, 15)

#: Whether ``dist.all_reduce`` and the like take None from a verb that has ended, as NCCL's: since 2.8, with this field.
TAKES_NO_WORK = hasattr(AllreduceOptions, "asyncOp")


def newer_than_tested(version: str) -> Optional[str]:
    """Return what to tell the user of torch ``version``; None if it is not newer than those that were tested."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    release: Tuple[int, ...] = tuple(int(number) for number in numbers.groups()) if numbers else NEWEST
    if release <= NEWEST:
        return None
    newest = ".".join(map(str, NEWEST))
    return (
        f"ddl_torch has been tested with torch up to {newest}, and this is {version}: it may work or fail. "
        f"Install a newer DDL if there is one, or 'torch<{NEWEST[0]}.{NEWEST[1] + 1}' (see docs/compatibility.md)"
    )


def warn_if_newer() -> None:
    """Warn if this torch is newer than what was tested. Called once in a process, by the import of the adapter."""
    text = newer_than_tested(torch.__version__)
    if text is not None:
        warnings.warn(text, stacklevel=3)  # the line that imports ddl_torch, or near it


def _take_many_versions() -> bool:
    """Return whether torch increments the versions of several tensors in one call, as newer ones do."""
    try:
        torch._C._increment_version([torch.empty(0)])
    except (RuntimeError, TypeError):
        return False
    return True


_MANY_VERSIONS = _take_many_versions()


def mark_written(tensor: torch.Tensor) -> None:
    """Tell autograd that the memory of ``tensor`` was overwritten behind its back.

    Autograd then refuses to use an old value that it had kept for a backward pass, instead of computing nonsense.
    """
    if tensor.is_inference():  # has no version
        return
    torch._C._increment_version([tensor] if _MANY_VERSIONS else tensor)


def question_of_tracing() -> Callable[[], bool]:
    """Return the function that is True where TorchDynamo traces the code that calls it, and False where it runs."""
    if hasattr(torch.compiler, "is_dynamo_compiling"):
        return torch.compiler.is_dynamo_compiling
    from torch._dynamo.external_utils import is_compiling  # torch 2.1

    return is_compiling


def timeout_given(timeout: datetime.timedelta) -> Optional[float]:
    """Return the seconds that a script gave a process group; None if it gave none, and ``timeout`` is torch's default.

    Called by the function that torch calls to make a group. That function gets a number, and a script may give the
    number of torch's default, too. Only torch's own variable tells the two apart: it is that very object if nobody gave
    another.
    """
    if timeout != default_pg_timeout:
        return timeout.total_seconds()
    given = sys._getframe(2).f_locals.get("timeout")
    explicit = isinstance(given, datetime.timedelta) and given is not default_pg_timeout
    return timeout.total_seconds() if explicit else None


_RECONFIGURES = (2, 14)  # the first release that has ``enable_reconfigure``


def no_reconfigure(version: str = torch.__version__) -> str:
    """Return why a process group that was not made for it cannot be reconfigured, and what to do."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and tuple(int(number) for number in numbers.groups()) < _RECONFIGURES:
        first = ".".join(map(str, _RECONFIGURES))
        return (
            f"process groups can be reconfigured with torch {first} and later, and this is {version}; "
            "update torch, or use ddl_torch.torchft.ProcessGroupDDL, which works with any"
        )
    return 'the group was made without it; pass enable_reconfigure=True to init_process_group("ddl")'


def never_compile(code: CodeType) -> None:
    """Let TorchDynamo run frames of ``code`` as they are. (Other frames that these call are others.)"""
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip, usual = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, usual))
    else:
        eval_frame.skip_code(code)  # type: ignore[attr-defined]  # the older way


def storage_users(storage: torch.UntypedStorage) -> int:
    """Return how many tensors share a storage, with the storage's own objects in Python."""
    return torch._C._storage_Use_Count(storage._cdata)
