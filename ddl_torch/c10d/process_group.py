"""``DDLProcessGroup``: what ``torch.distributed`` has for a process group on the backend "ddl".

A process group has a ``ddl.Communicator``: the default group has that of all ranks, any other group has its own. c10d
calls this file. ``backend.py`` makes the groups, ``verbs.py`` makes their verbs from DDL's, ``work.py`` has what they
return, and ``rendezvous.py`` brings the ranks together. docs/torch.md lists the differences from gloo.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Union

import torch
import torch.distributed as dist

from ddl import Communicator, InvalidState
from ddl_torch._compat import TAKES_NO_WORK, no_reconfigure
from ddl_torch._untraced import untraced
from ddl_torch.c10d.arguments import ENDED, Part, op_of
from ddl_torch.c10d.devices import OtherDevices, by_device
from ddl_torch.c10d.lifetime import Unwaited, torch_keeps_works
from ddl_torch.c10d.messages import Messages, channels_of
from ddl_torch.c10d.monitored_barrier import barrier_within, monitored_barrier, own_timeout
from ddl_torch.c10d.verbs import C10dVerbs
from ddl_torch.c10d.work import GroupWork, ThreadPerWork, Waiter, error_type

__all__ = ["DDLProcessGroup"]

Tensors = Sequence[torch.Tensor]
MaybeWork = Optional[GroupWork]  #: what c10d's caller is to wait for, if anything


_Base: Any = dist.ProcessGroup  # its stubs overload each verb with what c10d asks of no backend


@untraced
class DDLProcessGroup(_Base):  # type: ignore[misc]
    """c10d's verbs on one communicator, for tensors on the CPU and on GPUs. ``leave`` ends it.

    Made by all its ranks at once. ``timeout``: seconds of an operation (None: DDL_TIMEOUT).
    Each verb returns a ``GroupWork``; all ranks call the same verbs in the same order. Where c10d's caller is going to
    wait at once (``async_op=False``), the verb has ended when it returns, and returns None if nothing is left to wait
    for and torch takes that; not so where streams wait (DDL_GPU_WAIT).
    """

    def __init__(self, communicator: Communicator, leave: Callable[[], None], timeout: Optional[float]) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._prepare(timeout)
        self._take_up(communicator, channels_of(communicator, timeout), leave)

    def _prepare(self, timeout: Optional[float]) -> None:
        """Set what does not depend on the communicator."""
        self.others = OtherDevices(self, timeout)
        self._name = self._description = ""

    def _take_up(self, communicator: Communicator, channels: Sequence[Communicator], leave: Callable[[], None]) -> None:
        """Work by ``communicator`` from now on; ``channels``: see ``Messages``."""
        self.communicator = communicator
        self._leave = leave
        self._waiter = Waiter()
        self._unwaited = None if torch_keeps_works() else Unwaited()
        self._starting = C10dVerbs(communicator, blocking=False)
        self._blocking = C10dVerbs(communicator, blocking=True)
        self._streams_wait = communicator.job.settings.streams_wait
        self._timeout = communicator.timeout
        self._messages = Messages(communicator, channels, self._timeout)

    def _verbs(self, opts: Any, tensors: Tensors) -> C10dVerbs:
        """Return those that block if c10d's caller waits at once, unless a stream does that for a host that goes on."""
        if getattr(opts, "asyncOp", True):
            return self._starting
        blocking = self._blocking
        return self._starting if self._streams_wait and tensors and not tensors[0].is_cpu else blocking

    def _work(self, outputs: Tensors, parts: Sequence[Part]) -> MaybeWork:
        """Return the work of a verb: none after a blocking one that has left nothing to do."""
        if TAKES_NO_WORK and parts and parts.count(ENDED) == len(parts):
            return None
        return GroupWork(list(outputs), parts, self._waiter, self._unwaited)

    def _message(self, outputs: Tensors, parts: Sequence[Part]) -> GroupWork:
        return GroupWork(list(outputs), parts, ThreadPerWork(), self._unwaited)

    # --- what torch asks of a group, by torch's names ---

    def getBackendName(self) -> str:
        return "ddl"

    name = getBackendName

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    @property
    def group_desc(self) -> str:
        return self._description

    @property
    def _device_types(self) -> List[torch.device]:
        # While it makes a group, torch takes a device for a sign that a compiled backend is there, which it can record.
        # The CPU comes first: torch sends objects there.
        devices = {"cpu": "ddl", **self.others.all_names()} if self.others.ready() else {}
        return [torch.device(device) for device in devices]

    def _get_backend(self, device: torch.device) -> Any:
        if device.type in self.others.names():
            return self.others.group()._get_backend(device)
        return self

    supports_splitting = supports_coalescing = False  # what torch asks of a backend

    def _start_coalescing(self, device: torch.device) -> None:
        self.others.group()._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        return self.others.group()._end_coalescing(device)

    def set_timeout(self, timeout: timedelta) -> None:
        """Give each operation that begins from now on so much time, as ``dist.set_timeout`` asks. Not collective."""
        self._timeout = timeout.total_seconds()
        self.communicator.set_timeout(self._timeout)
        self._messages.set_timeout(self._timeout)
        if self.others.names():
            self.others.group().set_timeout(timeout)

    def split_group(self, *_: Any, **__: Any) -> dist.ProcessGroup:
        """Raise ``InvalidState``: torch would make a group that has no backend for the CPU."""
        raise InvalidState('split_group: the backend "ddl" cannot be split; new_group makes a group of the same ranks')

    # ``ReconfigurableProcessGroup`` overrides these three.

    @property
    def supports_reconfigure(self) -> bool:
        """Whether ``reconfigure`` works: if the group was made with ``enable_reconfigure=True``."""
        return False

    def get_reconfigure_handle(self) -> str:
        """Raise ``InvalidState``: see ``supports_reconfigure``."""
        raise InvalidState(f"get_reconfigure_handle: {no_reconfigure()}")

    def reconfigure(self, _: Any) -> Any:
        """Raise ``InvalidState``: see ``supports_reconfigure``."""
        raise InvalidState(f"reconfigure: {no_reconfigure()}")

    def errored(self) -> Optional[Exception]:
        """Return the error that has broken the group, None while it is whole. Does not block."""
        return self._messages.error()

    def get_error(self) -> Any:
        """Return torch's ``ErrorType`` of ``errored``: SUCCESS, TIMEOUT or COMM_ERROR. Does not block."""
        return error_type(self.errored())

    def abort(self) -> None:
        """Break the group on all its ranks: what is under way and every later verb raises ``ddl.Aborted``."""
        self._messages.abort("the process group was aborted")

    def shutdown(self) -> None:
        """Leave the group; what is under way fails. Called by ``dist.destroy_process_group``. Idempotent."""
        self._waiter.close()
        self._leave()

    # --- to all ranks ---

    @by_device
    def allreduce(self, tensors: Tensors, opts: Any = None) -> MaybeWork:
        """Combine each tensor over all ranks, in place."""
        verbs, op = self._verbs(opts, tensors), op_of(opts)
        return self._work(tensors, _of_each(verbs.allreduce, tensors, op))

    allreduce_coalesced = allreduce

    @by_device
    def broadcast(self, tensors: Tensors, opts: Any = None) -> MaybeWork:
        """Overwrite each tensor by that of ``opts.rootRank``."""
        verbs, root = self._verbs(opts, tensors), 0 if opts is None else opts.rootRank
        return self._work(tensors, _of_each(verbs.broadcast, tensors, root))

    @by_device
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> MaybeWork:
        """Fill ``outputs[i][r]`` with ``inputs[i]`` of rank r."""
        verbs = self._verbs(opts, inputs)
        parts = [part for targets, tensor in zip(outputs, inputs) for part in verbs.allgather(targets, tensor)]
        return self._work([tensor for targets in outputs for tensor in targets], parts)

    @by_device
    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> MaybeWork:
        """Fill ``outputs[r][i]`` with ``inputs[i]`` of rank r."""
        return self.allgather([list(targets) for targets in zip(*outputs)], inputs, opts)

    @by_device
    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> MaybeWork:
        """Fill ``output`` with the tensors of all ranks, one after the other."""
        return self._work([output], [self._verbs(opts, [tensor]).allgather_single(output, tensor)])

    @by_device
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> MaybeWork:
        """``all_gather_single`` of each pair."""
        verbs = self._verbs(opts, inputs)
        return self._work(outputs, [verbs.allgather_single(*pair) for pair in zip(outputs, inputs)])

    # --- to or from one rank ---

    @by_device
    def reduce(self, tensors: Tensors, opts: Any) -> MaybeWork:
        """Combine each tensor over all ranks; ``opts.rootRank`` gets the result, in place."""
        verbs = self._verbs(opts, tensors)
        return self._work(tensors, [verbs.reduce(tensor, opts.rootRank, opts.reduceOp) for tensor in tensors])

    @by_device
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> MaybeWork:
        """Fill ``outputs[0][r]``, on ``opts.rootRank`` only, with ``inputs[0]`` of rank r."""
        targets = outputs[0] if self.rank() == opts.rootRank else None
        return self._work(targets or [], [self._verbs(opts, inputs).gather(targets, inputs[0], opts.rootRank)])

    @by_device
    def gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> MaybeWork:
        """Fill ``output``, on ``opts.rootRank`` only, with the tensors of all ranks, one after the other."""
        target = output if self.rank() == opts.rootRank else None
        return self._work([output], [self._verbs(opts, [tensor]).gather_single(target, tensor, opts.rootRank)])

    @by_device
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> MaybeWork:
        """Fill ``outputs[0]`` with ``inputs[0][r]`` of ``opts.rootRank`` on rank r."""
        sources = inputs[0] if self.rank() == opts.rootRank else None
        return self._work(outputs, [self._verbs(opts, outputs).scatter(outputs[0], sources, opts.rootRank)])

    # --- to each rank its part ---

    @by_device
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> MaybeWork:
        """Combine ``inputs[i][r]`` over all ranks into ``outputs[i]`` of rank r."""
        verbs, op = self._verbs(opts, outputs), op_of(opts)
        parts = [part for target, sources in zip(outputs, inputs) for part in verbs.reducescatter(target, sources, op)]
        return self._work(outputs, parts)

    @by_device
    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> MaybeWork:
        """Combine ``tensor`` over all ranks; rank r gets the r-th part of it in ``output``."""
        verbs = self._verbs(opts, [tensor])
        return self._work([output], [verbs.reducescatter_single(output, tensor, op_of(opts))])

    @by_device
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> MaybeWork:
        """``reduce_scatter_single`` of each pair."""
        verbs, op = self._verbs(opts, outputs), op_of(opts)
        return self._work(outputs, [verbs.reducescatter_single(*pair, op) for pair in zip(outputs, inputs)])

    @by_device
    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> MaybeWork:
        """Send the r-th part of ``tensor`` to rank r; what comes fills ``output`` in rank order.

        Splits are numbers of rows; none: equal parts. Where they are given, sizes are exchanged before it returns; so
        all ranks give them, or none does: ``CollectiveMismatch`` on all if some do.
        """
        verbs = self._verbs(opts, [tensor])
        return self._work([output], [verbs.alltoall_single(output, tensor, output_splits, input_splits)])

    @by_device
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> MaybeWork:
        """Send ``inputs[r]`` to rank r, receive ``outputs[r]`` from it; sizes are exchanged before it returns."""
        return self._work(outputs, [self._verbs(opts, inputs).alltoall(outputs, inputs)])

    # --- no data, and from one to another ---

    @by_device
    def barrier(self, opts: Any = None) -> MaybeWork:
        """Done when every rank has called it.

        After a ``timeout`` of its own (``dist.barrier`` has one in newer versions of torch), if its caller waits at
        once, the group is broken: ``CollectiveTimeout``. Else the time is the group's.
        """
        seconds = own_timeout(opts)
        if seconds is None or getattr(opts, "asyncOp", True):
            return self._work([], [self._verbs(opts, []).barrier()])
        barrier_within(self.communicator, self._starting, seconds)
        return self._work([], [])

    def monitored_barrier(self, timeout: Union[timedelta, float, None] = None, wait_all_ranks: bool = False) -> None:
        """Return when every rank has called it. Blocking.

        After ``timeout`` (seconds, or a ``timedelta``; none: the group's), the group is broken, and
        ``CollectiveTimeout`` on all ranks names the first rank that has not come, with ``wait_all_ranks`` all of them.
        """
        own = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        seconds = self._timeout if own is None else own
        monitored_barrier(self.communicator, self._messages, seconds, wait_all_ranks)

    @by_device
    def send(self, tensors: Tensors, dst: int, tag: int) -> GroupWork:
        """Send to rank ``dst``. Messages between two ranks with the same tag arrive in the order of the calls."""
        return self._message([], [part for tensor in tensors for part in self._messages.send(tensor, dst, tag)])

    @by_device
    def recv(self, tensors: Tensors, src: int, tag: int) -> GroupWork:
        """Receive from rank ``src`` what it sends next with ``tag``, of the same type and size."""
        return self._message(tensors, [self._messages.recv(tensor, src, tag) for tensor in tensors])

    @by_device
    def recv_anysource(self, tensors: Tensors, tag: int) -> GroupWork:
        """Receive from the rank that first sends with ``tag``; the work's ``source_rank`` tells which that was."""
        return self._message(tensors, [self._messages.recv(tensor, None, tag) for tensor in tensors])

    # --- older names, by which older versions of torch call ---

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _of_each(verb: Callable[[torch.Tensor, Any], Part], tensors: Tensors, argument: Any) -> List[Part]:
    """Return what ``verb`` makes of each tensor: mostly one, for which a comprehension would take longer."""
    return [verb(tensors[0], argument)] if len(tensors) == 1 else [verb(tensor, argument) for tensor in tensors]
