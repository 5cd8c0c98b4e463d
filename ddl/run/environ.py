"""What ``ddlrun`` tells each rank through its environment: the contract between the launcher and ``ddl.init``.

=====================  ==========================================================================================
variable               meaning
=====================  ==========================================================================================
DDL_RANK, DDL_SIZE     this process's number in the job, and how many there are
DDL_LOCAL_RANK, _SIZE  the same among the ranks of this host
DDL_CROSS_RANK, _SIZE  this host's number among the hosts, and how many there are
DDL_STORE              host:port of the job's store, which runs in ddlrun
DDL_SECRET             the job's secret in hexadecimal; here and nowhere else, never on a command line
HOROVOD_RANK, ...      the six numbers again, for scripts that read Horovod's names
OMP_NUM_THREADS        the cores divided among the ranks, unless it is set or there is one rank
PYTHONUNBUFFERED       1 unless it is set, so that output shows when it is written
=====================  ==========================================================================================

All other variables are those of ddlrun itself, then those of ``--env``, ``--timeout`` and ``--start-timeout``. What a
rank reads beyond this, and with which defaults, stands in ddl/bootstrap/environ.py.
"""

from __future__ import annotations

import os
from typing import Dict, Mapping, Optional

from ddl.bootstrap.environ import Identity
from ddl.run.config import RunConfig

__all__ = ["rank_environ", "threads_per_rank"]


def threads_per_rank(config: RunConfig, local_size: int, base: Mapping[str, str]) -> Optional[int]:
    """Return the OMP_NUM_THREADS that ranks are given, None if the user's choice or the library's stands."""
    if local_size == 1 or "OMP_NUM_THREADS" in base or "OMP_NUM_THREADS" in dict(config.environ):
        return None
    return max(1, len(os.sched_getaffinity(0)) // local_size)


def rank_environ(config: RunConfig, rank: Identity, base: Mapping[str, str]) -> Dict[str, str]:
    """Return the whole environment of one rank; ``base`` is that of the process that starts it."""
    numbers = rank.to_environ()
    environ = {"PYTHONUNBUFFERED": "1", **base, **dict(config.environ), **numbers}
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"):
        environ[f"HOROVOD_{name}"] = numbers[f"DDL_{name}"]
    threads = threads_per_rank(config, rank.local_size, base)
    if threads is not None:
        environ["OMP_NUM_THREADS"] = str(threads)
    return environ
