"""What ``ddlrun`` tells each rank through its environment: the contract between the launcher and ``ddl.init``.

=====================  ==========================================================================================
variable               meaning
=====================  ==========================================================================================
DDL_RANK, DDL_SIZE     this process's number in the job, and how many there are
DDL_LOCAL_RANK, _SIZE  the same among the ranks of this host
DDL_CROSS_RANK, _SIZE  this host's number among the hosts, and how many there are
DDL_STORE              host:port of the job's store, which runs in ddlrun; of a process that comes later, perhaps
                       several on different networks, with commas between
DDL_SECRET             the job's secret in hexadecimal; here and nowhere else, never on a command line
DDL_RECORDS            the socket by which a rank passes its record to the part of ddlrun on its host (recordings.py)
DDL_ELASTIC            1 in an elastic job, in which ranks come and go; not there in any other job
DDL_INCARNATION        the number of a process that came later, and its DDL_RANK, until the store tells its real rank
HOROVOD_RANK, ...      the six numbers again, and HOROVOD_HOSTNAME, for scripts that read Horovod's names
RANK, WORLD_SIZE       the numbers again, for ``torch.distributed``
LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE
MASTER_ADDR, _PORT     an address of rank 0's host, and a port that is kept for it there; for ``torch.distributed``
OMP_NUM_THREADS        the cores divided among the ranks, unless it is set or there is one rank
TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS  the same number, for TensorFlow, which does not read the one before
THEANO_FLAGS           with a folder of compiled code for each rank of a host, unless they name one
PYTHONUNBUFFERED       1 unless it is set, so that output shows when it is written
=====================  ==========================================================================================

All other variables are those of ddlrun itself, then those of ``--env``, ``--timeout`` and ``--start-timeout``. The
other variables that a rank reads, and their defaults, are in ddl/bootstrap/environ.py.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Dict, Iterator, Mapping

from ddl.bootstrap.environ import Identity
from ddl.launch.ask.config import RunConfig
from ddl.net.address import EVERYWHERE, bound

__all__ = [
    "ELASTIC",
    "INCARNATION",
    "THREADS",
    "keep_port",
    "meeting_point",
    "newcomer",
    "rank_environ",
    "theano_flags",
    "threads_of_ranks",
]

ELASTIC, INCARNATION = "DDL_ELASTIC", "DDL_INCARNATION"

#: Ours and Horovod's names of numbers, and torch's.
_NUMBERS = {
    "RANK": "RANK",
    "SIZE": "WORLD_SIZE",
    "LOCAL_RANK": "LOCAL_RANK",
    "LOCAL_SIZE": "LOCAL_WORLD_SIZE",
    "CROSS_RANK": "GROUP_RANK",
    "CROSS_SIZE": "GROUP_WORLD_SIZE",
}

#: By these, libraries that compute are told how many threads to have.
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")

#: The flags by which a user names the folder itself, and Theano's own name for it in ``base_compiledir``.
_FOLDERS_OF_THEANO = ("compiledir", "compiledir_format")
_FOLDER_OF_THEANO = "compiledir_%(short_platform)s-%(processor)s-%(python_version)s-%(python_bitwidth)s"


@contextlib.contextmanager
def keep_port() -> Iterator[int]:
    """Keep a port of this host for rank 0 of the job, and return it.

    It is bound, but nobody listens. So the kernel gives it to nobody else who asks for any port or connects, while
    a program that binds it by its number and with SO_REUSEADDR, as torch's TCPStore and most servers do, gets it.
    """
    with bound(EVERYWHERE, 0) as kept:
        yield int(kept.getsockname()[1])


def meeting_point(address: str, port: int, base: Mapping[str, str]) -> Dict[str, str]:
    """Return where ``torch.distributed`` has its store, unless ``base``, the user's environment, says it."""
    if "MASTER_ADDR" in base and "MASTER_PORT" in base:
        return {}
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


def threads_of_ranks(config: RunConfig, local_size: int, base: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables for threads that ranks are given: none that the user has set, none if there is one rank."""
    if local_size == 1:
        return {}
    share = str(max(1, len(os.sched_getaffinity(0)) // local_size))
    return {name: share for name in THREADS if name not in base and name not in dict(config.environ)}


def theano_flags(flags: str, rank: Identity) -> str:
    """Return Theano's flags, so that each rank of a host compiles into a folder of its own.

    Theano 1.0.5 locks a folder that processes share, but they read some files of it without the lock. So the second
    rank could find files gone while the first one compiled, and ended at once. What the user says of folders stays.
    """
    if rank.local_size == 1 or any(flag.partition("=")[0].strip() in _FOLDERS_OF_THEANO for flag in flags.split(",")):
        return flags
    own = f"compiledir_format={_FOLDER_OF_THEANO}-rank{rank.local_rank}"
    return f"{flags},{own}" if flags else own


def newcomer(identity: Identity) -> Dict[str, str]:
    """Return what a process is told beside its environment if it is not among those that the job begins with."""
    return {INCARNATION: str(identity.rank)}


def rank_environ(config: RunConfig, rank: Identity, base: Mapping[str, str]) -> Dict[str, str]:
    """Return the whole environment of one rank; ``base`` is that of the process that starts it."""
    numbers = rank.to_environ()
    environ = {"PYTHONUNBUFFERED": "1", **base, **dict(config.environ), **numbers}
    for name, torch in _NUMBERS.items():
        environ[torch] = environ[f"HOROVOD_{name}"] = numbers[f"DDL_{name}"]
    environ["HOROVOD_HOSTNAME"] = socket.gethostname()
    for name in (ELASTIC, INCARNATION):
        environ.pop(name, None)  # of a job that ddlrun itself may be a rank of
    if config.elastic is not None:
        environ[ELASTIC] = "1"
    environ.update(threads_of_ranks(config, rank.local_size, base))
    flags = theano_flags(environ.get("THEANO_FLAGS", ""), rank)
    if flags:
        environ["THEANO_FLAGS"] = flags
    return environ
