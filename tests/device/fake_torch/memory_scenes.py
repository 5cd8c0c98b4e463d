"""Scenes of memory (scenes.py): what was freed is given again, and when."""

from __future__ import annotations

from typing import Callable, List

import torch
from device.fake_cuda import Fake
from device.fake_torch.scenes import later


def freed_memory_is_given_again(fake: Fake) -> None:
    """Freed memory goes to the next allocation of its size on its stream, without a wait; not to other streams."""
    side = torch.fake.Stream()
    x = later(1.0)
    pointer = x.data_ptr()
    with torch.fake.stream(side):
        del x
        assert later(2.0).data_ptr() != pointer
    assert later(3.0, 3000).data_ptr() != pointer
    assert later(3.0, 999).data_ptr() == pointer
    assert fake.violations == []


def use_after_free_is_noticed(fake: Fake) -> None:
    """A copy of another stream from memory that was freed and given again is what the ledger is for."""
    side, host = torch.fake.Stream(), fake.host(4000)
    for kept in (True, False):
        x = later(1.0)
        side.wait_stream(torch.fake.current_stream())
        fake.copy_down(host.address, x.data_ptr(), 4000, side.cuda_stream)
        if kept:
            side.synchronize()
        del x
        y = later(2.0)
        torch.fake.synchronize()
        assert (fake.violations == []) == kept
        del y


def record_stream(fake: Fake) -> None:
    """Memory that another stream uses, and that torch knows of, is not given again before that use has ended."""
    side, host = torch.fake.Stream(), fake.host(4000)
    x = later(1.0)
    pointer = x.data_ptr()
    side.wait_stream(torch.fake.current_stream())
    fake.pause()
    fake.copy_down(host.address, pointer, 4000, side.cuda_stream)
    x.record_stream(side)
    del x
    y = later(2.0)
    assert y.data_ptr() != pointer
    fake.pause(False)
    fake.until(lambda: fake.pending() == 0)
    z = later(3.0)
    assert z.data_ptr() == pointer
    torch.fake.synchronize()
    assert host.view("float32").tolist() == [1.0] * 1000
    assert fake.violations == []


SCENES: List[Callable[[Fake], None]] = [
    freed_memory_is_given_again,
    use_after_free_is_noticed,
    record_stream,
]
