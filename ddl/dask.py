"""DDL on Dask: ``ddl.dask.run`` calls a function on ranks that are tasks of Dask, one on each worker.

Dask starts each task when its worker is free, and knows no tasks that belong together. So each rank is bound to a
worker that was chosen before, the ranks wait for one another as in any job, and the client keeps the job's store: it
knows which rank was the cause of a failure, also where Dask only waits for a worker that is gone. See docs/dask.md.
"""

from __future__ import annotations

import uuid
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from distributed import Client, Future, wait

import ddl
from ddl.adapter.joining import call_as_rank

__all__ = ["run"]

_LOOK = 1.0  # seconds between two looks at the job's store and at the workers, while no task ends


def run(
    client: Client,
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Optional[Mapping[str, Any]] = None,
    *,
    num_proc: Optional[int] = None,
    workers: Optional[Sequence[str]] = None,
) -> List[Any]:
    """Call ``function(*args, **kwargs)`` on ranks that are workers of Dask; return what it returned, by rank. Blocking.

    In the function DDL is initialised: ``ddl.rank()``, ``ddl.allreduce``, all of it. Ranks of a host follow one
    another. num_proc: how many ranks; None: one on each worker. workers: addresses of those that may be ranks.

    Raises ``InvalidArgument`` if there are not so many workers, and ``RankFailed``, which names the rank, if one is
    lost or its function raises; Dask's error is its cause. The other ranks have ended then, too.

    >>> losses = ddl.dask.run(Client("scheduler:8786"), train, args=("data.npz",))
    """
    places = _places(client.scheduler_info(n_workers=-1)["workers"], num_proc, workers)
    job = uuid.uuid4().hex
    with ddl.JobStore(len(places)) as store:
        futures = [
            client.submit(
                *(_as_rank, rank, len(places), store.invitation, function, tuple(args), dict(kwargs or {})),
                key=f"ddl-rank-{rank}-{job}",
                workers=[address],
                allow_other_workers=False,
                pure=False,
                retries=0,
            )
            for rank, address in enumerate(places)
        ]
        try:
            _await(client, places, futures, store)
            return list(client.gather(futures))
        finally:
            client.cancel(futures)  # of what has ended, too: Dask keeps nothing of this job


def _places(known: Mapping[str, Any], num_proc: Optional[int], allowed: Optional[Sequence[str]]) -> List[str]:
    """Return the addresses of the workers that will be ranks, host by host."""
    by_host: Dict[str, List[str]] = {}
    for address, worker in known.items():
        if allowed is None or address in allowed:
            by_host.setdefault(worker["host"], []).append(address)
    places = [address for addresses in by_host.values() for address in addresses]
    count = len(places) if num_proc is None else num_proc
    if type(count) is not int or not 0 < count <= len(places):
        raise ddl.InvalidArgument(
            f"ddl.dask.run: num_proc={num_proc!r}, and Dask has {len(places)} workers for it; each rank needs one. "
            "Wait for them with client.wait_for_workers(N)"
        )
    return places[:count]


def _await(client: Client, places: List[str], futures: List[Future], store: ddl.JobStore) -> None:
    """Return when all tasks have ended well; raise when one has failed, or a rank or its worker is lost."""
    left = list(futures)
    while left:
        try:
            done, left = wait(left, timeout=_LOOK, return_when="FIRST_COMPLETED")
        except TimeoutError:
            done = []
        for future in done:
            if future.status != "finished":
                future.result()  # raises
        if not left or done:
            continue
        if store.failure is not None:
            raise store.failure
        there = client.scheduler_info(n_workers=-1)["workers"]
        for rank, (address, future) in enumerate(zip(places, futures)):
            if address not in there and not future.done():  # Dask would wait for this worker
                text = f"Dask has lost its worker {address}; look at that worker's log, and call run again"
                raise ddl.RankFailed(rank, f"rank {rank} of {len(places)} failed: {text}")


def _as_rank(rank: int, size: int, invitation: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run in a task: be a rank of the job, and call the function."""
    if ddl.is_initialized():
        raise ddl.InvalidState(
            f"ddl.dask.run: the worker of rank {rank} is a rank of another job; wait for that, or name other workers"
        )
    return call_as_rank(ddl.Rendezvous(rank, size, invitation), function, *args, **kwargs)
