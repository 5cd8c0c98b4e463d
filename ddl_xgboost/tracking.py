"""``network``: the ranks of a job find one another in XGBoost, by a tracker of XGBoost's own that rank 0 starts.

XGBoost's collectives are chosen in its C++ code, and there is no function to plug others in. So its data take its own
connections. What DDL gives are the ranks, their numbers, the tracker's address, and a verdict when a rank is lost.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Optional

from xgboost.collective import CommunicatorContext
from xgboost.core import XGBoostError
from xgboost.tracker import RabitTracker

import ddl
from ddl.adapter.addresses import own_address

__all__ = ["network"]


@contextlib.contextmanager
def network(communicator: Optional[ddl.Communicator] = None) -> Iterator[None]:
    """Let XGBoost train over the ranks of ``communicator`` (None: all ranks) in the body of a ``with``.

    Collective. Make each ``DMatrix``, train, and use estimators of ``xgboost.sklearn`` in it, with the same parameters
    on all ranks, each with its own rows. XGBoost's ranks are DDL's. It waits at most the timeout of the communicator.

    If XGBoost fails in it, the ranks meet, and a lost one is named: raises ``PeerLost`` and the other errors of
    collectives, or XGBoost's own error where no rank is lost; ``InvalidState`` before ``init``.

    >>> with ddl_xgboost.network():
    ...     model = xgboost.XGBClassifier().fit(x, y)
    """
    communicator = ddl.world() if communicator is None else communicator
    if communicator.size == 1:
        yield
        return
    limit = max(1, round(communicator.timeout))
    communicator.barrier()  # XGBoost would wait in silence for a rank that is gone
    tracker, arguments = None, None
    if communicator.rank == 0:
        tracker = RabitTracker(communicator.size, own_address(), sortby="task", timeout=limit)
        tracker.start()
        arguments = tracker.worker_args()
    try:
        with _verdict(communicator):
            own = _own_arguments(communicator.broadcast_object(arguments), communicator.rank, limit)
            with CommunicatorContext(**own):
                yield
            if tracker is not None:
                tracker.wait_for(limit)
    finally:
        if tracker is not None:
            with contextlib.suppress(XGBoostError):  # it says again that a rank did not take leave
                tracker.free()


def _own_arguments(arguments: Dict[str, Any], rank: int, limit: int) -> Dict[str, Any]:
    """Return what XGBoost is told on this rank: it sorts ranks by the names of their tasks."""
    return {**arguments, "dmlc_task_id": f"{rank:010}", "dmlc_timeout": limit}


@contextlib.contextmanager
def _verdict(communicator: ddl.Communicator) -> Iterator[None]:
    """When XGBoost has failed on one rank, its connections are closed, so it fails on all, and all come here."""
    try:
        yield
    except XGBoostError as error:
        try:
            communicator.barrier()
        except ddl.CommunicatorError as verdict:
            raise verdict from error
        raise
