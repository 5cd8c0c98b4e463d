"""Scenes of order (scenes.py): what is late, who waits for whom, and when the ledger objects."""

from __future__ import annotations

import threading
from typing import Any, Callable, List

import torch
from device.fake_cuda import Fake
from device.fake_torch.scenes import DEVICE, later, same


def a_result_is_late(fake: Fake) -> None:
    """A call returns before its result is there; who reads it on the same stream gets it nevertheless."""
    x = torch.zeros(1000, device=DEVICE)
    torch.accelerator.synchronize()
    pinned = torch.ones(1000).pin_memory()
    fake.pause()
    x.fill_(3)
    y = x.clone()
    x.copy_(pinned, non_blocking=True)
    assert not torch.fake.current_stream().query()
    assert fake.pending() > 0
    fake.pause(False)
    same(y, torch.full((1000,), 3.0))
    same(x, torch.ones(1000))
    assert torch.fake.current_stream().query()
    assert fake.violations == []


def pinned_memory_is_read_late(fake: Fake) -> None:
    """A copy without blocking reads pinned memory when it is run; one from other memory has read it when it returns."""
    pinned, plain = torch.ones(10).pin_memory(), torch.ones(10)
    fake.pause()
    x, y = pinned.to(DEVICE, non_blocking=True), plain.to(DEVICE, non_blocking=True)
    pinned.fill_(2)
    plain.fill_(2)
    fake.pause(False)
    same(x, torch.full((10,), 2.0))
    same(y, torch.ones(10))


def side_streams(fake: Fake) -> None:
    """A reader on another stream that waits gets the values, and the ledger is silent; without, it objects."""
    side = torch.fake.Stream()
    for wait in (True, False):
        x = later(1.0) + later(2.0)
        if wait:
            side.wait_stream(torch.fake.current_stream())
        with torch.fake.stream(side):
            y = x * 2
        side.synchronize()
        if wait:
            same(y, torch.full((1000,), 6.0))
            assert fake.violations == []
    assert fake.violations != [] and all("nothing orders these" in text for text in fake.violations)


def the_host_learns_nothing_by_operations(fake: Fake) -> None:
    """Operations do not order streams, though the host has waited in them; a synchronisation does."""
    side = torch.fake.Stream()
    x = later(1.0)
    for _ in range(5):
        y = x + 1
    torch.fake.synchronize()
    with torch.fake.stream(side):
        y.add_(1)
    side.synchronize()
    assert fake.violations == []
    for _ in range(5):
        y = x + y
    with torch.fake.stream(side):
        x.add_(1)
    side.synchronize()
    assert fake.violations != []


def events(fake: Fake) -> None:
    """Events order streams, and tell the host when work has been done."""
    side, event = torch.fake.Stream(priority=-1), torch.fake.Event()
    assert event.query()
    fake.pause()
    x = later(1.0)
    event.record()
    event.wait(side)
    assert not event.query()
    fake.pause(False)
    with torch.fake.stream(side):
        x += 1
        done = torch.fake.current_stream().record_event()
    done.synchronize()
    assert done.query() and event.query()
    same(x, torch.full((1000,), 2.0))
    generic = torch.Event(DEVICE)
    generic.record(side)
    generic.wait(torch.accelerator.current_stream())
    generic.synchronize()
    assert fake.violations == []


def streams(fake: Fake) -> None:
    """Handles are the driver's, and the current stream is a thread's own."""
    default, side = torch.fake.default_stream(), torch.fake.Stream()
    assert torch.fake.current_stream() == default and default.cuda_stream == 0
    assert side.cuda_stream != 0 and fake.stream_done(side.cuda_stream)
    seen: List[Any] = []
    with torch.fake.stream(side):
        assert torch.fake.current_stream() == side == torch.accelerator.current_stream()
        thread = threading.Thread(target=lambda: seen.append(torch.fake.current_stream()))
        thread.start()
        thread.join()
    assert seen == [default] and torch.fake.current_stream() == default
    with side:
        assert torch.fake.current_stream() == side
    assert not torch.fake.is_current_stream_capturing()
    fake.capture_begin(side.cuda_stream)
    with torch.fake.stream(side):
        assert torch.fake.is_current_stream_capturing()
    fake.capture_end(side.cuda_stream)


def two_devices(fake: Fake) -> None:
    """Each device has its streams; a copy between them is ordered on both."""
    x = torch.arange(100.0, device="fake:1")
    assert x.device.index == 1 and torch.fake.current_device() == 0
    y = (x + 1).to("fake:0")
    assert fake.pointer_attributes(y.data_ptr())["ordinal"] == 0
    x.zero_()
    x.copy_(y * 2)
    same(x, (torch.arange(100.0) + 1) * 2)
    with torch.fake.device(1):
        assert torch.ones(1, device=DEVICE).device.index == 1
        side = torch.fake.Stream()
        assert side.device.index == 1
    with torch.fake.stream(side):
        assert torch.fake.current_device() == 1
    assert torch.fake.current_device() == 0
    assert fake.violations == []


def futures(fake: Fake) -> None:
    """A future with devices lets its waiter's stream wait for the stream on which it was completed."""
    side, reader = torch.fake.Stream(), torch.fake.Stream()
    for ordered in (True, False):
        future: torch.futures.Future[Any] = torch.futures.Future(devices=["fake:0"] if ordered else None)
        chained = future.then(lambda done: done.value() + 1) if ordered else None
        with torch.fake.stream(side):
            x = later(1.0)
            future.set_result(x)
        with torch.fake.stream(reader):
            y = future.wait() * 2
            if chained is not None:
                z = chained.wait() + 1
        reader.synchronize()
        assert (fake.violations == []) == ordered
        if ordered:
            same(y, torch.full((1000,), 2.0))
            same(z, torch.full((1000,), 3.0))


def a_failed_device(fake: Fake) -> None:
    """A device that has failed raises instead of blocking."""
    x = later(1.0)
    fake.fail(719, 0)
    try:
        (x + 1).cpu()
    except RuntimeError as error:
        assert "719" in str(error)
    else:
        raise AssertionError("the failure was not noticed")


SCENES: List[Callable[[Fake], None]] = [
    a_result_is_late,
    pinned_memory_is_read_late,
    side_streams,
    the_host_learns_nothing_by_operations,
    events,
    streams,
    two_devices,
    futures,
    a_failed_device,
]
