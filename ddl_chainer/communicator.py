"""``DDLCommunicator``: a communicator of ChainerMN that uses DDL. ChainerMN's optimizer and all the rest work on it."""

from __future__ import annotations

import functools
import operator
import os
import socket
from typing import Any, List, Optional, Tuple
from weakref import WeakSet, WeakValueDictionary

import chainermn
import numpy as np

import ddl
from ddl.adapter.arrays import decode_type, shape_of
from ddl.adapter.generation import Change, bring_along
from ddl_chainer._mpi4py import import_without_mpi4py
from ddl_chainer.mailbox import ANY_TAG, Mailbox, checked
from ddl_chainer.model import Gradients, broadcast, packed, parameters_of

__all__ = ["DDLCommunicator", "create_communicator"]

#: Of those that are in use.
_mailboxes: WeakValueDictionary[ddl.Communicator, Mailbox] = WeakValueDictionary()


def create_communicator(communicator_name: str = "ddl", mpi_comm: Any = None, **options: Any) -> DDLCommunicator:
    """Join the job, if that has not been done, and return ChainerMN's communicator of all its ranks.

    In place of ``chainermn.create_communicator``. Collective, blocking. ``mpi_comm``: see ``ddl.init``. Of ChainerMN's
    options, ``batched_copy`` changes nothing. Raises ``InvalidArgument`` for other options and for other names (those
    are ChainerMN's to make, under mpiexec), and what ``ddl.init`` does.
    """
    if communicator_name != "ddl" or options.keys() - {"batched_copy"}:
        raise ddl.InvalidArgument(
            f"create_communicator: makes 'ddl', not {communicator_name!r} with options {sorted(options)}; "
            "others are made by chainermn.create_communicator, and the wire's type is said by DDL_WIRE"
        )
    ddl.init(mpi_comm)
    import_without_mpi4py()
    return DDLCommunicator(ddl.world())


class DDLCommunicator(chainermn.CommunicatorBase):
    """ChainerMN's communicator, over one of DDL's; made by ``create_communicator`` and ``split``.

    Its methods are those of ``chainermn.CommunicatorBase``, on numpy arrays; shapes may differ by rank where ChainerMN
    says so. Ranks make the same collective calls in the same order, from one thread at a time. **Objects are pickled**
    where they are no plain data, as ChainerMN's are: the ranks of a job let one another run code. Mistakes raise
    ``InvalidArgument``, a ``ValueError``; any call raises ``CollectiveMismatch``, ``PeerLost`` and the like.
    """

    rank = property(lambda self: self._communicator.rank)
    size = property(lambda self: self._communicator.size)
    inter_rank = property(lambda self: self._hosts[self.rank])
    inter_size = property(lambda self: len(set(self._hosts)))
    intra_rank = property(lambda self: self._hosts[: self.rank].count(self.inter_rank))
    intra_size = property(lambda self: self._hosts.count(self.inter_rank))

    def __init__(self, communicator: ddl.Communicator) -> None:
        super().__init__()
        self._configs = {"batched_copy": True}  # gradients are one operation anyway
        self._gradients = Gradients(communicator)
        self._use(communicator, hosts_of(communicator))
        if communicator is ddl.world():
            _of_all_ranks.add(self)

    def _use(self, communicator: ddl.Communicator, hosts: List[int]) -> None:
        self._communicator, self._hosts = communicator, hosts
        self._mail = _mailboxes.setdefault(communicator, Mailbox(communicator))

    def go_over_to(self, communicator: ddl.Communicator, hosts: List[int]) -> None:
        """Work on ``communicator`` from now on, whose ranks are on ``hosts``."""
        self._use(communicator, hosts)
        self._gradients.go_over_to(communicator)

    def set_config(self, name: str, value: Any = True, **kwargs: Any) -> None:
        if name != "batched_copy":
            super().set_config(name, **kwargs)
        self._configs[name] = value

    def split(self, color: Optional[int], key: int) -> Optional[DDLCommunicator]:
        part = self._communicator.split(color, key)
        return None if part is None else DDLCommunicator(part)

    def finalize(self) -> None:
        if self._communicator is not ddl.world():  # which others use
            self._communicator.close()

    def send(self, data: Any, dest: int, tag: int = 0) -> None:
        several = isinstance(data, (tuple, list))
        self._mail.send("arrays" if several else "array", data if several else [data], dest, tag)

    def recv(self, source: int, tag: int = ANY_TAG) -> Any:
        return self._mail.recv("recv", source, tag)

    def send_obj(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._mail.send("object", obj, dest, tag)

    def recv_obj(self, source: int, status: None = None, tag: int = ANY_TAG) -> Any:
        return self._mail.recv("recv_obj", source, tag)

    def bcast_obj(self, obj: Any, max_buf_len: Optional[int] = None, root: int = 0) -> Any:
        return self._communicator.broadcast_object(obj, root=root, allow_pickle=True)

    def gather_obj(self, obj: Any, root: int = 0) -> Optional[List[Any]]:
        objects = self._communicator.allgather_object(
            obj, allow_pickle=True
        )  # all ranks learn of one that cannot be sent
        return objects if self.rank == root else None

    def allreduce_obj(self, obj: Any) -> Any:
        return functools.reduce(operator.add, self._communicator.allgather_object(obj, allow_pickle=True))

    def allreduce(self, data: np.ndarray) -> np.ndarray:
        return self._communicator.allreduce(checked(self._communicator, "allreduce", data)[0], op=ddl.Sum)

    def bcast(self, data: Any, root: int = 0, max_buf_len: Optional[int] = None) -> np.ndarray:
        array, head = checked(self._communicator, "bcast", data if self.rank == root else np.empty(0))
        head = self._communicator.broadcast(head, root=root)
        array = array if self.rank == root else np.empty(shape_of(head), decode_type(head))
        return self._communicator.broadcast_(array, root=root)

    def allgather(self, x: np.ndarray) -> Tuple[np.ndarray, ...]:
        array, heads = self._heads("allgather", x)
        return cut(self._communicator.allgather(array), heads)

    def gather(self, data: np.ndarray, root: int = 0) -> Optional[Tuple[np.ndarray, ...]]:
        array, heads = self._heads("gather", data)
        joined = self._communicator.gather(array, root=root)
        return None if joined is None else cut(joined, heads)

    def alltoall(self, xs: Any) -> Tuple[np.ndarray, ...]:
        arrays, heads = self._one_for_each("alltoall", xs)
        joined = np.concatenate([array.reshape(-1) for array in arrays])
        heads = self._communicator.alltoall(heads, out=np.empty_like(heads))
        return cut(self._communicator.alltoall(joined, splits=[array.size for array in arrays])[0], heads)

    def scatter(self, xs: Any, root: int = 0) -> np.ndarray:
        arrays, heads = self._one_for_each("scatter", xs if self.rank == root else [np.empty(0)] * self.size)
        kind = decode_type(self._communicator.broadcast(heads[0], root=root))
        return self.alltoall(arrays if self.rank == root else [np.empty(0, kind)] * self.size)[root]

    def bcast_data(self, model: Any) -> None:
        broadcast(self._communicator, [parameter.array for _, parameter in parameters_of(model)], root=0)
        self._gradients.restart()

    def multi_node_mean_grad(self, model: Any, zero_fill: bool = False) -> None:
        parameters = [parameter for _, parameter in parameters_of(model)]
        for parameter in parameters if zero_fill else ():
            if parameter.grad is None:
                parameter.grad = np.zeros_like(parameter.array)
        self._gradients.average([parameter for parameter in parameters if parameter.grad is not None])

    def _multi_node_mean(self, sendbuf: Optional[np.ndarray], recvbuf: np.ndarray) -> None:
        """Write the average of ``sendbuf``, else of ``recvbuf``, into ``recvbuf``: MultiNodeBatchNormalization's."""
        if sendbuf is not None:
            recvbuf[...] = sendbuf
        array = self._communicator.allreduce_(packed(recvbuf))
        if array is not recvbuf:
            recvbuf[...] = array

    def _heads(self, verb: str, x: Any) -> Tuple[np.ndarray, np.ndarray]:
        array, head = checked(self._communicator, verb, x)
        return array.reshape(-1), self._communicator.allgather(head, out=np.empty((self.size, head.size), head.dtype))

    def _one_for_each(self, verb: str, xs: Any) -> Tuple[List[np.ndarray], np.ndarray]:
        several = list(xs) if isinstance(xs, (tuple, list, np.ndarray)) else []
        pairs = [checked(self._communicator, verb, x) for x in several]
        types = sorted({array.dtype.name for array, _ in pairs})
        if len(pairs) != self.size or len(types) > 1:
            given = f"{len(pairs)} of {types} in a {type(xs).__name__}"
            text = f"needs arrays of one type, one for each of {self.size} ranks, not {given}"
            raise ddl.InvalidArgument(f"{self._communicator.who} {verb}: {text}")
        return [array for array, _ in pairs], np.stack([head for _, head in pairs])


def hosts_of(communicator: ddl.Communicator) -> List[int]:
    """Return the number of each rank's host. Collective, blocking."""
    names = communicator.allgather_object([socket.gethostname(), os.environ.get("DDL_HOST_ID", "")])
    firsts = [names.index(name) for name in names]
    return [sorted(set(firsts)).index(first) for first in firsts]


#: Communicators of all ranks of the job of now.
_of_all_ranks: WeakSet[DDLCommunicator] = WeakSet()


def _follow(change: Change) -> None:
    """Let communicators of all ranks go on with those that there are now. Collective, blocking."""
    hosts = hosts_of(ddl.world())  # once: how many communicators there are may differ by rank
    for communicator in list(_of_all_ranks):
        communicator.go_over_to(ddl.world(), hosts)


bring_along(_follow)


def cut(joined: np.ndarray, heads: np.ndarray) -> Tuple[np.ndarray, ...]:
    """Return the arrays that lie one after the other, with the shapes of ``heads``."""
    shapes = [shape_of(head) for head in heads]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return tuple(part.reshape(shape) for part, shape in zip(np.split(joined, ends[:-1]), shapes))
