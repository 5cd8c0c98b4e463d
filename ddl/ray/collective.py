"""DDL as a backend of ``ray.util.collective``: groups of actors, and their collectives, by Ray's names.

Ray's registry is one of each process: call ``register`` in the driver and in all actors. A group is a job of its own,
beside others; an actor may be in several. Its store is with rank 0 of the group.
"""

from __future__ import annotations

import os
import time
from typing import Any, List, Optional

import numpy as np
import ray
from ray.exceptions import RayError
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp

import ddl
from ddl import clock
from ddl.adapter.calls import Call, Collective, calls_of
from ddl.adapter.joining import JobBeside, Settings
from ddl.errors import InvalidArgument, RendezvousError

__all__ = ["DDLGroup", "register"]

NAME = "DDL"
_RETRY = 0.02  # seconds between two looks for what rank 0 has left
_OPERATORS = {ReduceOp.SUM: ddl.Sum, ReduceOp.PRODUCT: ddl.Product, ReduceOp.MIN: ddl.Min, ReduceOp.MAX: ddl.Max}


def register() -> None:
    """Let ``init_collective_group(…, backend="DDL")`` and ``create_collective_group`` find this. Idempotent.

    Call it in the driver, and in each actor before its first collective.
    """
    from ray.util.collective import is_backend_available

    if not is_backend_available(NAME):
        register_collective_backend(NAME, DDLGroup)


class _Letter:
    """An actor that rank 0 of a group makes under a name: what it tells the others."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self) -> str:
        return self._text


class _Post:
    """How rank 0 shares a text with the other actors of a group: the ``share`` of a ``ddl.Rendezvous``."""

    def __init__(self, group: str, size: int, rank: int, patience: float) -> None:
        self._group, self._who, self._patience = group, f"rank {rank} of {size}", patience
        self._name = f"ddl_collective_{group}"
        self._letter: Any = None

    def __call__(self, text: Optional[str]) -> str:
        if text is not None:
            self._letter = ray.remote(_Letter).options(name=self._name, num_cpus=0).remote(text)
            return text
        deadline, why = clock.now() + self._patience, "it has not begun to"
        while clock.now() < deadline:
            try:
                letter = ray.get_actor(self._name)
                return str(ray.get(letter.read.remote(), timeout=max(_RETRY, deadline - clock.now())))
            except (ValueError, RayError) as error:  # not there yet, or one of a group before is on its way out
                why = str(error)
                time.sleep(_RETRY)
        raise RendezvousError(
            f"{self._who} of group {self._group!r}: rank 0 did not make it within {self._patience:g} s "
            f"(DDL_START_TIMEOUT): {why}"
        )

    def throw_away(self) -> None:
        """All have read it, or never will."""
        if self._letter is not None:
            ray.kill(self._letter)


class DDLGroup(BaseGroup):
    """A group of actors that use DDL. Ray makes it; its arrays are of numpy or torch, contiguous, written in place."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        patience = Settings.from_environ(os.environ).start_timeout
        post = _Post(group_name, world_size, rank, patience)
        try:
            self._job = JobBeside(ddl.Rendezvous(rank, world_size, post, engine="Ray"), patience, None)
        finally:
            post.throw_away()
        self._world = self._job.world

    @classmethod
    def backend(cls) -> str:
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        self._job.leave()

    def allreduce(self, tensor: List[Any], allreduce_options: Any) -> None:
        self._world.allreduce_(_only(tensor), op=_OPERATORS[allreduce_options.reduceOp])

    def barrier(self, barrier_options: Any = None) -> None:
        self._world.barrier()

    def reduce(self, tensor: List[Any], reduce_options: Any) -> None:
        array, root = _only(tensor), reduce_options.root_rank
        output = array if root == self.rank else None
        op = _OPERATORS[reduce_options.reduceOp]
        calls_of(self._world).run(Call(Collective.REDUCE, array, output, None, op=op, root=root))

    def broadcast(self, tensor: List[Any], broadcast_options: Any) -> None:
        self._world.broadcast_(_only(tensor), broadcast_options.root_rank)

    def allgather(self, tensor_list: List[List[Any]], tensor: List[Any], allgather_options: Any = None) -> None:
        array, outputs = _only(tensor), _only(tensor_list)
        everybody = self._world.allgather(array, out=_like(array, self.world_size))
        for output, part in zip(outputs, everybody):
            output[...] = part

    def reducescatter(self, tensor: List[Any], tensor_list: List[List[Any]], reducescatter_options: Any) -> None:
        output, inputs = _only(tensor), _only(tensor_list)
        joined = _like(output, self.world_size)
        for part, array in zip(joined, inputs):
            part[...] = array
        self._world.reducescatter(joined, op=_OPERATORS[reducescatter_options.reduceOp], out=output)

    def send(self, tensor: List[Any], send_options: Any) -> None:
        self._world.send(_only(tensor), send_options.dst_rank)

    def recv(self, tensor: List[Any], recv_options: Any) -> None:
        self._world.recv(_only(tensor), recv_options.src_rank)


def _only(arrays: List[Any]) -> Any:
    """Return the one array, or list of arrays, of an actor. Ray has verbs for several GPUs, too."""
    if len(arrays) != 1:
        raise InvalidArgument(f"ray.util.collective with DDL: {len(arrays)} arrays of one actor; give one")
    return arrays[0]


def _like(array: Any, count: int) -> Any:
    """Return a new array of numpy or torch with ``count`` times the shape of ``array``."""
    shape = (count, *array.shape)
    return array.new_empty(shape) if hasattr(array, "new_empty") else np.empty_like(array, shape=shape)
