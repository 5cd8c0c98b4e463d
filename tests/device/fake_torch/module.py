"""``torch.fake``: what libraries ask of ``torch.cuda``, asked of the fake device.

A function that is not here is one that nothing has needed so far.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Iterator, List, Optional, Sequence, Union

import torch

_Where = Union[None, int, str, torch.device]
_process = os.getpid()


def _index(device: _Where) -> int:
    if device is None:
        return current_device()
    index = device if isinstance(device, int) else torch.device(device).index
    return current_device() if index is None or index < 0 else index


# --- devices ---


def is_available() -> bool:
    """Return whether the driver has a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Return True: nothing has to be done before the first use."""
    return True


def init() -> None:
    """Do nothing, as there is nothing to do."""


def _lazy_init() -> None:
    """Do nothing, as there is nothing to do."""


def _is_in_bad_fork() -> bool:
    return os.getpid() != _process


def device_count() -> int:
    """Return how many devices the driver has."""
    return int(torch.ops.fake_torch.device_count())


def current_device() -> int:
    """Return the index of this thread's current device."""
    return torch.accelerator.current_device_index()


def set_device(device: _Where) -> None:
    """Make the device this thread's current one: that makes a context there, as in CUDA from 12 on."""
    index = _index(device)
    torch.accelerator.set_device_index(index)
    torch.ops.fake_torch.make_context(index)


def _exchange_device(index: int) -> int:
    former = current_device()
    if index >= 0:
        set_device(index)
    return former


def _maybe_exchange_device(index: int) -> int:
    """Go back to a device without making a context where there is none."""
    former = current_device()
    if index >= 0:
        torch.accelerator.set_device_index(index)
    return former


@contextlib.contextmanager
def device(where: _Where) -> Iterator[None]:
    """Have the device current in this thread, for a while."""
    former = _exchange_device(_index(where))
    try:
        yield
    finally:
        _maybe_exchange_device(former)


def synchronize(device: _Where = None) -> None:
    """Block until the streams that torch has of the device have done all that they have."""
    torch.accelerator.synchronize(_index(device))


def get_device_name(device: _Where = None) -> str:
    """Return a name."""
    return f"fake GPU {_index(device)}"


def get_device_capability(device: _Where = None) -> Any:
    """Return CUDA's number of what a device can do."""
    return 9, 0


def empty_cache() -> None:
    """Do nothing: memory that was freed stays with its stream."""


# --- streams and events ---


class Stream(torch.Stream):
    """A stream; ``cuda_stream`` is the driver's handle, and 0 for the default stream, as in ``torch.cuda``."""

    def __new__(cls, device: _Where = None, priority: int = 0, **known: Any) -> Stream:
        if known:
            return super().__new__(cls, priority=priority, **known)
        return super().__new__(cls, torch.device("fake", _index(device)), priority=priority)

    @property
    def cuda_stream(self) -> int:
        """The driver's handle."""
        return int(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.fake.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event(torch.Event):
    """An event, recorded on the current stream unless a stream is given."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        return super().__new__(cls, "fake", enable_timing=False, blocking=blocking, interprocess=False)

    def record(self, stream: Optional[torch.Stream] = None) -> None:
        """Record what the stream has now."""
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: Optional[torch.Stream] = None) -> None:
        """Let what comes later on the stream wait for what was recorded."""
        super().wait(current_stream() if stream is None else stream)


def _own(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: _Where = None) -> Stream:
    """Return this thread's current stream of the device."""
    return _own(torch.accelerator.current_stream(_index(device)))


def default_stream(device: _Where = None) -> Stream:
    """Return the device's default stream, which is the driver's legacy stream."""
    known = torch.accelerator.current_stream(_index(device))
    return Stream(stream_id=0, device_index=known.device_index, device_type=known.device_type)


def set_stream(stream: torch.Stream) -> None:
    """Make the stream, and its device, this thread's current ones."""
    if stream.device_index != current_device():
        set_device(stream.device_index)
    torch.accelerator.set_stream(stream)


@contextlib.contextmanager
def stream(chosen: Optional[torch.Stream]) -> Iterator[None]:
    """Have the stream and its device current in this thread, for a while."""
    if chosen is None:
        yield
        return
    before, there = current_stream(), current_stream(chosen.device_index)
    set_stream(chosen)
    try:
        yield
    finally:
        if before.device_index != chosen.device_index:
            set_stream(there)
        set_stream(before)


def is_current_stream_capturing() -> bool:
    """Return whether the current stream is being captured in a graph."""
    return bool(torch.ops.fake_torch.capturing())


# --- random numbers ---


def _generator(device: _Where = None) -> torch.Generator:
    return torch.ops.fake_torch.default_generator(_index(device))


def get_rng_state(device: _Where = None) -> torch.Tensor:
    """Return the state of the device's default generator."""
    return _generator(device).get_state()


def set_rng_state(state: torch.Tensor, device: _Where = None) -> None:
    """Set the state of the device's default generator."""
    _generator(device).set_state(state)


def get_rng_state_all() -> List[torch.Tensor]:
    """Return the states of all devices' default generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(states: Sequence[torch.Tensor]) -> None:
    """Set the states of all devices' default generators."""
    for index, state in enumerate(states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seed the current device's default generator."""
    _generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed all devices' default generators."""
    for index in range(device_count()):
        _generator(index).manual_seed(seed)


def initial_seed() -> int:
    """Return the seed of the current device's default generator."""
    return _generator().initial_seed()


# --- mixed precision ---


def get_amp_supported_dtype() -> List[torch.dtype]:
    """Return the types that ``torch.autocast`` may cast to."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """Return True: the CPU computes it."""
    return True
