"""What must hold of the fake device, as functions that a process of their own runs (``test_fake_torch.py``).

A process in which a device is registered is another one than before: autograd has a thread for each device, and
libraries ask ``torch.accelerator``. So no process of pytest becomes such a one.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable

import torch
from device.fake_cuda import Fake
from device.fake_torch import install, restart

DEVICE = "fake"


def play(scene: Callable[[Fake], None]) -> None:
    """Run a scene on a driver that is new, with two devices. A warning is an error."""
    warnings.simplefilter("error")
    fake = Fake(devices=2)
    install()
    restart()
    torch.accelerator.set_device_index(0)
    torch.manual_seed(7)
    try:
        scene(fake)
    finally:
        fake.pause(False)


def same(device: Any, cpu: Any) -> None:
    """Check that values on the device are those of the CPU, to the bit."""
    if isinstance(cpu, (list, tuple)):
        assert len(device) == len(cpu)
        for left, right in zip(device, cpu):
            same(left, right)
    elif isinstance(cpu, torch.Tensor):
        assert device.device.type == DEVICE and device.dtype == cpu.dtype and device.shape == cpu.shape
        assert torch.equal(device.cpu().nan_to_num(), cpu.nan_to_num()), (device.cpu(), cpu)
    else:
        assert device == cpu


def later(value: float, count: int = 1000) -> torch.Tensor:
    """Return a tensor whose values are on their way, on the current stream."""
    return torch.full((count,), value, device=DEVICE)
