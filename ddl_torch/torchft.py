"""``ProcessGroupDDL``: the process group that torchft's ``Manager`` takes, on DDL. torchft itself is not needed here.

torchft decides which replicas take part in the next steps, and calls ``configure`` on all of them. It finds an error of
a collective by ``errored``, and then decides anew. This class is the counterpart of ``ReconfigurableProcessGroup``
(reconfigurable.py), and works with any version of torch.
"""

from __future__ import annotations

import contextlib
import datetime
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ddl import InvalidArgument, clock
from ddl_torch.c10d.meeting import MeetingAttempt, MeetingFailed, RankHandle
from ddl_torch.c10d.reconfigurable import ChangingProcessGroup
from ddl_torch.c10d.work import GroupWork

__all__ = ["ProcessGroupDDL"]

_DEFAULT_TIMEOUT = datetime.timedelta(seconds=60)  # torchft's


class ProcessGroupDDL(ChangingProcessGroup):
    """A process group for ``torchft.Manager(pg=ProcessGroupDDL(), …)``: its ranks are those of the last ``configure``.

    ``timeout``: how long ``configure``, and each operation, may take. Beside DDL's job of this process, if it has one:
    ``ddl.world()`` stays what it is. A process may have several.

    >>> group = ProcessGroupDDL(timeout=datetime.timedelta(seconds=30))
    >>> group.configure("node1:29500/quorum/1", "replica_0", 0, 1)
    >>> group.size()
    1
    """

    _no_ranks = (
        "this process group has no ranks; call configure first (again, if the last one failed, or after shutdown)"
    )

    def __init__(self, timeout: datetime.timedelta = _DEFAULT_TIMEOUT) -> None:
        super().__init__(0, 1, timeout.total_seconds())
        self._error: Optional[Exception] = None  # of the last ``configure``
        self._connection: Optional[Tuple[str, TCPStore]] = None  # the last store, and where it is

    def getBackendName(self) -> str:
        return "torchft-ddl"

    def configure(
        self,
        store_addr: str,
        replica_id: Union[str, int],
        rank: int,
        world_size: Optional[int] = None,
        quorum_id: Optional[int] = None,
        group_rank: Optional[int] = None,
        group_world_size: Optional[int] = None,
        global_ranks: Optional[Sequence[int]] = None,
    ) -> None:
        """Leave the ranks of now, and be rank ``rank`` of ``world_size`` that meet at ``store_addr``.

        Collective over the new ranks, blocking. ``store_addr`` is ``host:port/prefix`` of a ``TCPStore``; the prefix is
        fresh each time. Older versions of torchft leave out ``replica_id``, which with the last four arguments says who
        calls, and is not needed. Raises ``InvalidArgument`` for an address or numbers that make no sense,
        ``InvalidState`` if the prefix was used before, ``RendezvousError`` naming the ranks that do not come. Then the
        group has no ranks.
        """
        if world_size is None:
            rank, world_size = int(replica_id), rank
        if not 0 <= rank < world_size:
            raise InvalidArgument(f"configure: rank {rank} of {world_size} ranks; ranks count from 0")
        assert self._seconds is not None
        deadline = clock.now() + self._seconds
        self._drop()
        try:
            store = PrefixStore("ddl", self._store_at(store_addr, self._seconds))
            own = RankHandle.new(rank)
            handles = _handles(
                store, own, world_size, self._seconds, f"[rank {rank}/{world_size}] configure at {store_addr}"
            )
            left = max(0.01, deadline - clock.now())
            self._go_to(MeetingAttempt(store, f"configure at {store_addr}", own, handles, left))
        except Exception as error:
            self._error = error
            raise
        self._error = None

    def _store_at(self, address: str, seconds: float) -> Store:
        """Return the store at ``host:port/prefix``, by the last connection if that is to the same."""
        place, _, prefix = address.partition("/")
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit():
            raise InvalidArgument(f"configure: {address!r} is not host:port/prefix of a TCPStore")
        limit = datetime.timedelta(seconds=seconds)
        try:
            if self._connection is not None and self._connection[0] == place:
                with contextlib.suppress(RuntimeError):  # it may be another store by now
                    self._connection[1].set_timeout(limit)
                    self._connection[1].check(["ddl"])
                    return PrefixStore(prefix, self._connection[1])
            store = TCPStore(host.strip("[]"), int(port), None, False, limit, wait_for_workers=False)
        except RuntimeError as error:
            raise MeetingFailed(f"configure: no TCPStore answers at {place}: {error}") from error
        self._connection = place, store
        return PrefixStore(prefix, store)

    def errored(self) -> Optional[Exception]:
        """Return the error that has broken the group, or with which ``configure`` failed; None while it is whole."""
        return self._error or super().errored()

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Let each operation, and the next ``configure``, take so long. Not collective."""
        super().set_timeout(timeout)

    def shutdown(self) -> None:
        """Leave the group; what is under way fails. Idempotent; it can be configured again."""
        super().shutdown()
        self._error = None

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Optional[GroupWork]:
        """Combine each tensor over all ranks, in place. ``opts`` may also be a ``ReduceOp``, as torchft passes it."""
        if opts is not None and not hasattr(opts, "reduceOp"):
            options = dist.AllreduceOptions()
            options.reduceOp = opts
            opts = options
        return super().allreduce(tensors, opts)

    allreduce_coalesced = allreduce

    def broadcast_one(self, tensor: torch.Tensor, root: int) -> Optional[GroupWork]:
        """Overwrite ``tensor`` by that of rank ``root``."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        return self.broadcast([tensor], options)

    def register(self, name: str) -> Any:
        """Make the group known to torch as one of this process alone, for meshes and functional collectives.

        Once, with a ``name`` that no other has, in a process with a default group. Returns this group.
        """
        backend = f"{self.getBackendName()}:{name}"
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        dist.Backend.register_backend(backend, lambda *_: self, devices=devices)
        return dist.new_group([dist.get_rank()], backend=backend, group_desc=backend)

    def unregister(self) -> None:
        """Undo ``register``, and leave the group."""
        dist.destroy_process_group(self)

    def __repr__(self) -> str:
        return f"ProcessGroupDDL(rank {self.rank()} of {self.size()})"


def _handles(store: Store, own: RankHandle, size: int, limit: float, who: str) -> List[RankHandle]:
    """Swap handles with the others. ``MeetingFailed`` naming those that do not come within ``limit`` seconds."""
    deadline = clock.now() + limit
    keys = [f"rank/{rank}" for rank in range(size)]
    try:
        store.set(keys[own.number], own.text())
        store.wait(keys, datetime.timedelta(seconds=limit))
        return [RankHandle.parse(str(store.get(key), "utf-8")) for key in keys]
    except RuntimeError as error:
        missing = []
        if clock.now() >= deadline:
            with contextlib.suppress(RuntimeError):
                missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        if not missing:
            raise MeetingFailed(f"{who} failed: its store has ended, or does not answer: {error}") from error
        late = ", ".join(missing)
        raise MeetingFailed(
            f"{who} failed: rank {late} did not come within {limit:g} s; is its process alive?"
        ) from None
