"""Groups of several backends, as "cpu:ddl,cuda:nccl".

In torch a backend that is written in Python is always the whole group, so torch drops the other backends. Here they get
a group of their own, of the same ranks. Calls with tensors on other devices go there.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any, Callable, Dict, Optional, TypeVar

import torch
import torch.distributed as dist

from ddl import InvalidArgument, InvalidState, clock
from ddl.adapter.operations import timeline
from ddl_torch._untraced import set_eval_frame, untraced_already

__all__ = ["OtherDevices", "by_device"]

Verb = TypeVar("Verb", bound=Callable[..., Any])


class OtherDevices:
    """The backends of ``group`` other than ``ddl``, each for a device. ``timeout``: seconds, None: torch's default."""

    def __init__(self, group: dist.ProcessGroup, timeout: Optional[float]) -> None:
        self._owner = group
        self._timeout = timeout
        self._backend: Optional[dist.ProcessGroup] = None
        self._making = False  # then backends may ask the default group for its own, which is what is being made

    def ready(self) -> bool:
        """Return whether torch has made the group, and knows which backends it was asked for."""
        return self._owner in dist.distributed_c10d._world.pg_backend_config

    def all_names(self) -> Dict[str, str]:
        """Return the backend of each device, as the group was asked for; nothing while it, or ``group``, is made."""
        if self._making or not self.ready():
            return {}
        pairs = (pair.split(":") for pair in dist.get_backend_config(self._owner).split(","))
        return {device: backend for device, backend in pairs}

    def names(self) -> Dict[str, str]:
        """Return those of ``all_names`` that have another backend than ``ddl``."""
        return {device: backend for device, backend in self.all_names().items() if backend != "ddl"}

    def group(self) -> dist.ProcessGroup:
        """Return the group that has them. Collective over the group's ranks, and blocking, the first time.

        Raises ``InvalidState`` if the group has no other backend.
        """
        if self._backend is None:
            names = self.names()
            if not names:
                raise InvalidState('this group has no backend but ddl; ask for one, as in "cpu:ddl,cuda:nccl"')
            self._making = True
            try:
                self._backend = dist.new_group(
                    dist.get_process_group_ranks(self._owner),
                    timeout=None if self._timeout is None else timedelta(seconds=self._timeout),
                    backend=",".join(f"{device}:{backend}" for device, backend in names.items()),
                    use_local_synchronization=True,
                )
            finally:
                self._making = False
        return self._backend


def by_device(verb: Verb) -> Verb:
    """Pass a verb on to the group's backend for the device of its first tensor, if it has one for it.

    What is done here is told to the timeline, if there is one (DDL_TIMELINE).
    """

    def of_list(self: Any, tensors: Any, opts: Any = None) -> Any:
        before = set_eval_frame(None)
        try:
            if timeline.active() is None and type(tensors) is list and tensors:
                if type(tensors[0]) is torch.Tensor and tensors[0].is_cpu:  # nearly always
                    return verb(self, tensors, opts)
            return passed_on(self, tensors, opts)
        finally:
            set_eval_frame(before)

    def of_any(self: Any, *arguments: Any, **options: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return passed_on(self, *arguments, **options)
        finally:
            set_eval_frame(before)

    def passed_on(self: Any, *arguments: Any, **options: Any) -> Any:
        device = _device(arguments)
        if device is not None:
            _refuse_several(verb.__name__, device, arguments)
        if device is not None and device.type in self.others.names():
            return getattr(self.others.group(), verb.__name__)(*arguments, **options)
        recorder = timeline.active()
        if recorder is None:
            return verb(self, *arguments, **options)
        begun = clock.now()
        work = verb(self, *arguments, **options)
        row = f"{verb.__name__} of {self.getGroupDesc() or self.getGroupName()}"
        if work is None:  # it has ended
            recorder.operation(row, verb.__name__, begun, begun, clock.now())
        else:
            work.put_into(recorder, row, verb.__name__, begun)
        return work

    # Python packs no arguments for a verb of a list and options, as all-reduce. All that is in one function, with what
    # ``untraced`` does: it is most of what a small operation costs.
    called = of_list if verb.__code__.co_varnames[1:3] == ("tensors", "opts") else of_any
    return untraced_already(functools.wraps(verb)(called))  # type: ignore[return-value]


def _refuse_several(verb: str, device: torch.device, arguments: Any) -> None:
    """Raise ``InvalidArgument`` for tensors on several GPUs: a work has one stream to finish on."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            _refuse_several(verb, device, argument)
        elif isinstance(argument, torch.Tensor) and not argument.is_cpu and argument.device != device:
            raise InvalidArgument(f"{verb}: tensors are on {device} and on {argument.device}; make a call for each")


def _device(arguments: Any) -> Optional[torch.device]:
    """Return the device of the first tensor, None for the CPU."""
    first = arguments[0] if arguments else None
    if type(first) is torch.Tensor and first.is_cpu:  # mostly, and sooner than below
        return None
    for argument in arguments:
        while isinstance(argument, (list, tuple)) and argument:
            argument = argument[0]
        if isinstance(argument, torch.Tensor):
            return None if argument.is_cpu else argument.device
    return None
