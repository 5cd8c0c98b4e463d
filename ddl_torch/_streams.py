"""Tensors on a GPU: what the core gets of them, and on which streams it happens. Only this file knows torch's streams.

A verb runs after everything queued on the *caller's* current stream, and does its own work on the GPU (scaling, copies)
on that stream, whichever thread does it: on that thread's own current stream, the work would be ordered with nothing. A
``wait`` makes the stream that is current where it is called wait for the verb. The core's own copies have ended when
its works are done.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Generic, List, Optional, Sequence, Set, TypeVar

import torch

from ddl import InvalidState
from ddl.adapter.arrays import GpuArray, GpuMemory

__all__ = ["GPU_TYPES", "FinishOnStream", "GpuTensor", "StreamJoin", "StreamOfCall", "gpu_of", "is_on_gpu", "memory"]
__all__ += ["refuse_capture", "settle"]

T = TypeVar("T")
#: Devices whose memory the driver of CUDA knows, by torch's names.
GPU_TYPES: Set[str] = {"cuda"}
_NAMES = {dtype: str(dtype).split(".")[-1] for dtype in (torch.bool, torch.float16, torch.bfloat16)}


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Return whether the core can reach the tensor on its GPU."""
    return not tensor.is_cpu and tensor.device.type in GPU_TYPES


def gpu_of(tensors: Sequence[torch.Tensor]) -> Optional[torch.device]:
    """Return the GPU of the first tensor that is on one; None: there is none."""
    for tensor in tensors:
        if not tensor.is_cpu and is_on_gpu(tensor):
            return tensor.device
    return None


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type)  # torch.cuda


def memory(tensor: torch.Tensor) -> GpuMemory:
    """Return what the core gets of a contiguous tensor on a GPU for one call, behind the current stream."""
    dtype = tensor.dtype
    if dtype not in _NAMES:
        _NAMES[dtype] = str(dtype).split(".")[-1]
    stream = _module(tensor.device).current_stream(tensor.device).cuda_stream
    return GpuMemory(tensor.data_ptr(), tensor.numel(), _NAMES[dtype], stream, tensor)


class GpuTensor(GpuArray):
    """A tensor on a GPU, for the verbs of ``ddl`` that return new arrays; its ``owner`` is the tensor."""

    def new(self, shape: Sequence[int]) -> GpuTensor:
        """Return a new one of this type, of torch's allocator, on the current stream."""
        return GpuTensor(self.owner.new_empty(tuple(shape)))


def refuse_capture(tensor: torch.Tensor, verb: str) -> None:
    """Raise ``InvalidState`` while a CUDA graph is captured on the current stream: a collective is no part of one."""
    module = _module(tensor.device)
    with module.device(tensor.device):
        capturing = module.is_current_stream_capturing()
    if capturing:
        raise InvalidState(
            f"{verb}: a CUDA graph is being captured on the current stream, and a collective cannot be a part of a "
            "graph; call it outside of the capture"
        )


def settle(device: torch.device) -> None:
    """Wait, on the host, for all that is queued on the current stream: then every stream may use the results."""
    if device.type in GPU_TYPES:
        _module(device).current_stream(device).synchronize()


class StreamOfCall:
    """The stream of ``device`` that is current now, where a verb is called."""

    def __init__(self, device: torch.device) -> None:
        self._module = _module(device)
        self._device = device
        self._stream = self._module.current_stream(device)

    @property
    def handle(self) -> int:
        """The driver's handle of it."""
        return int(self._stream.cuda_stream)

    def bind(self, function: Callable[..., T]) -> Callable[..., T]:
        """Return ``function`` so that it works on this stream in any thread."""

        def bound(*arguments: Any) -> T:
            # First the device: a thread that is new to CUDA would else go back to GPU 0, and make a context there.
            with self._module.device(self._device), self._module.stream(self._stream):
                return function(*arguments)

        return bound

    def finish(self, function: Callable[..., T]) -> FinishOnStream[T]:
        """Return ``function`` so that it works on this stream, for which the caller's current stream then waits."""
        return FinishOnStream(self, function)

    def record(self) -> Any:
        """Return an event behind all that is queued on the stream now."""
        event = self._module.Event()
        event.record(self._stream)
        return event

    def wait(self, event: Any) -> None:
        """Let the stream that is current here wait for ``event``."""
        event.wait(self._module.current_stream(self._device))


class FinishOnStream(Generic[T]):
    """What is left to do of a verb when the core's work is done; a caller may come again, under another stream."""

    def __init__(self, stream: StreamOfCall, function: Callable[..., T]) -> None:
        self.stream, self._function = stream, stream.bind(function)
        self._event: Any = None

    def __call__(self, *arguments: Any) -> T:
        result = self._function(*arguments)
        self._event = self.stream.record()
        self.join()
        return result

    def join(self) -> None:
        """Let the stream that is current here wait for what was done."""
        if self._event is not None:
            self.stream.wait(self._event)


class StreamJoin:
    """Collects the streams on which parts of a buffer are written, for the reader of all of it. ``device``: a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._module, self._device = _module(device), device
        self._events: Dict[Any, Any] = {}  # by stream

    def note(self) -> None:
        """The current stream has been given something to write."""
        stream = self._module.current_stream(self._device)
        event = self._events.get(stream)
        if event is None:
            event = self._events[stream] = self._module.Event()
        event.record(stream)

    def join(self) -> None:
        """Let the current stream wait for all of them."""
        current = self._module.current_stream(self._device)
        events: List[Any] = [event for stream, event in self._events.items() if stream != current]
        for event in events:
            event.wait(current)
        self._events.clear()
