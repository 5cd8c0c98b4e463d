"""``ddp_hook``: DDL averages the gradients of a ``DistributedDataParallel`` whose process group stays another one.

Annotations here are not strings: ``register_comm_hook`` compares them with the types.
"""

from typing import Optional

import torch
from torch._C._distributed_c10d import GradBucket

import ddl
from ddl import clock
from ddl.adapter.operations import timeline
from ddl_torch._tensors import alias
from ddl_torch.c10d.work import GroupWork, Waiter

__all__ = ["ddp_hook"]

_waiter = Waiter()  # of all models; its thread is there from the first bucket on


def ddp_hook(communicator: Optional[ddl.Communicator], bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ranks of ``communicator``; None: all ranks of the job.

    A communication hook of DDP, called in its backward pass after ``ddl_torch.init()``; ``communicator`` has the ranks
    of the model's process group. Collective, not blocking. ``backward`` ends with the
    ``ddl.Error`` that is met when an average is begun, and with torch's ``RuntimeError`` of the same text if it is met
    later.

    >>> model = DistributedDataParallel(model)  # on any backend
    >>> model.register_comm_hook(None, ddl_torch.ddp_hook)
    """
    communicator = ddl.world() if communicator is None else communicator
    gradients = bucket.buffer()
    memory = alias(gradients, "ddp_hook")
    work = communicator.allreduce_async_(memory, op=ddl.Average, name=f"bucket.{bucket.index()}")
    under_way = GroupWork([gradients], [(work, None)], _waiter)
    recorder = timeline.active()
    if recorder is not None:
        under_way.put_into(recorder, f"bucket.{bucket.index()}", "allreduce", clock.now())
    averaged: torch.futures.Future[list[torch.Tensor]] = under_way.get_future()
    return averaged.then(_only)


def _only(averaged: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    (gradients,) = averaged.value()
    return gradients
