"""A device of torch that needs no GPU: ``install()`` registers it as "fake".

Its memory and its streams are those of the fake driver (``device.fake_cuda``), whose ledger sees every access. Each
operation is computed on the CPU; its result is then still on its way to the device, as on a GPU: a reader on another
stream that does not wait gets old bytes, and the ledger objects. A rank's job calls ``install()`` first, and uses
``torch.device("fake", 0)`` where a user of a GPU writes "cuda". A test that resets the driver (``Fake()``) calls
``restart()`` afterwards: tensors, streams and events of before are gone.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable

import torch
from device import fake_cuda
from device.fake_cuda.entries import load
from device.fake_torch import module
from device.fake_torch.build import library


@functools.cache
def install() -> Any:
    """Register the device, once in a process, and return its module, which is ``torch.fake``, too.

    The driver is the library that ``DDL_CUDA_LIBRARY`` names, as for DDL's core.
    """
    torch.ops.load_library(str(library()))
    torch.utils.rename_privateuse1_backend("fake")
    driver = os.environ.get("DDL_CUDA_LIBRARY") or str(fake_cuda.library())
    torch.ops.fake_torch.install(driver)
    torch.autograd._engine_run_backward = _told_to_ledger(torch.autograd._engine_run_backward, load(driver))
    torch._register_device_module("fake", module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return module


def _told_to_ledger(run_backward: Callable[..., Any], driver: Any) -> Callable[..., Any]:
    """Return ``run_backward`` so that who calls it knows, for the ledger, what autograd's last thread has known.

    That thread ends the pass, and with it what DDL does then; the caller goes on only afterwards. The ledger does not
    see that by itself.
    """

    @functools.wraps(run_backward)
    def told(outputs: Any, *arguments: Any, **options: Any) -> Any:
        token = id(outputs)

        def tell(times: int) -> None:
            driver.ddl_ledger_release(token)
            if times > 0:  # behind the callbacks that have come since
                torch.autograd.Variable._execution_engine.queue_callback(functools.partial(tell, times - 1))

        hook = outputs[0].register_hook(lambda _: tell(2))
        try:
            return run_backward(outputs, *arguments, **options)
        finally:
            hook.remove()
            driver.ddl_ledger_acquire(token)

    return told


def restart() -> None:
    """Forget everything of a driver that was reset: memory, streams, events."""
    torch.ops.fake_torch.restart()


__all__ = ["install", "library", "restart"]
