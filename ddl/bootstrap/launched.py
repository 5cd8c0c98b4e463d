"""Ranks that another launcher has started: torchrun, srun, Open MPI's or MPICH's mpiexec.

Such a launcher says who a process is, but has no store for DDL. So rank 0 has the store, in its own process. It tells
the others where it is and what the secret is: over PMI if the launcher has it (MPICH), through an mpi4py communicator
if the program has one, else by a file that only this user can read, in a directory that all hosts share
(DDL_RENDEZVOUS_DIR; by default ~/.ddl).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ddl import at_exit, clock
from ddl.bootstrap.environ import Identity, Settings
from ddl.bootstrap.meeting import Launched, Rendezvous, Share, meet, places
from ddl.errors import ConfigError, InvalidArgument, RendezvousError
from ddl.net.connecting import first_to_answer
from ddl.store.server import StoreServer

__all__ = ["admission", "detect", "identity", "numbered"]

_RETRY = 0.02  # seconds between two looks at the file
_ANSWERS = 5.0  # seconds for one of the addresses in the file to answer


def detect(environ: Mapping[str, str]) -> Optional[Launched]:
    """Return what a launcher has put into ``environ``, None if there was none. ConfigError if it makes no sense."""
    for launcher, mark, read in (
        ("torchrun", "WORLD_SIZE", _torchrun),
        ("Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK", _openmpi),
        ("srun", "SLURM_STEP_NUM_TASKS", _srun),
        ("MPICH's mpiexec", "PMI_RANK", _mpich),
    ):
        if mark in environ:
            try:
                numbers = read(environ)
            except (KeyError, ValueError, IndexError) as error:
                raise ConfigError(
                    f"{mark}={environ[mark]} looks as if {launcher} had started this, but {error} is missing or no "
                    "number; start the program by ddlrun, or unset these variables"
                ) from None
            if numbers is None:
                continue
            process = Launched(launcher, *numbers)
            if not 0 <= process.rank < process.size:
                raise ConfigError(f"{launcher} says that this is rank {process.rank} of {process.size}")
            return process
    return None


_Numbers = Tuple[int, int, int, int, int, int, str]


def _torchrun(environ: Mapping[str, str]) -> Optional[_Numbers]:
    if not all(environ.get(name) for name in ("RANK", "MASTER_ADDR", "MASTER_PORT")):
        return None  # a WORLD_SIZE of something else
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    local_rank, local_size = int(environ.get("LOCAL_RANK", 0)), int(environ.get("LOCAL_WORLD_SIZE", 1))
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    job = "-".join(environ.get(name, "") for name in names)
    return rank, size, local_rank, local_size, int(environ.get("GROUP_RANK", 0)), _groups(environ), job


def _groups(environ: Mapping[str, str]) -> int:
    return int(environ.get("GROUP_WORLD_SIZE", 0))


def _openmpi(environ: Mapping[str, str]) -> Optional[_Numbers]:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    rank, size, local_rank, local_size = (int(environ[f"OMPI_COMM_WORLD_{name}"]) for name in names)
    return rank, size, local_rank, local_size, 0, 0, environ["PMIX_NAMESPACE"]


def _srun(environ: Mapping[str, str]) -> Optional[_Numbers]:
    size, node, nodes = (int(environ[f"SLURM_{name}"]) for name in ("STEP_NUM_TASKS", "NODEID", "STEP_NUM_NODES"))
    counts: List[int] = []
    for part in environ["SLURM_STEP_TASKS_PER_NODE"].split(","):  # 2(x3),1
        number, _, times = part.rstrip(")").partition("(x")
        counts += [int(number)] * int(times or 1)
    job = "-".join(environ.get(f"SLURM_{name}", "0") for name in ("JOB_ID", "STEP_ID", "RESTART_COUNT"))
    return int(environ["SLURM_PROCID"]), size, int(environ["SLURM_LOCALID"]), counts[node], node, nodes, job


def _mpich(environ: Mapping[str, str]) -> Optional[_Numbers]:
    if "PMI_FD" not in environ:
        return None
    rank, size = int(environ["PMI_RANK"]), int(environ["PMI_SIZE"])
    local_rank, local_size = int(environ["MPI_LOCALRANKID"]), int(environ["MPI_LOCALNRANKS"])
    return rank, size, local_rank, local_size, 0, 0, ""


class _KeptState:
    """What lives as long as this process: a job joined once is the same at the next ``init``."""

    identity: Optional[Identity] = None


def identity(environ: Mapping[str, str], settings: Settings, comm: Any = None) -> Optional[Identity]:
    """Return who another launcher, or the mpi4py communicator ``comm``, says this process is; None if nobody says it.

    Collective, the first time. Raises ConfigError and RendezvousError.
    """
    if _KeptState.identity is not None:
        return _KeptState.identity
    if comm is None and "mpi4py.MPI" in sys.modules and ("PMI_RANK" in environ or "OMPI_COMM_WORLD_RANK" in environ):
        comm = sys.modules["mpi4py.MPI"].COMM_WORLD  # MPI is up, and speaks PMI itself
    process = detect(environ) if comm is None else _of_communicator(comm)
    if process is None or process.size == 1:
        return None
    share = _by_communicator(comm) if comm is not None else _way_to_share(process, environ, settings)
    _KeptState.identity, _, server = meet(process, share, settings)
    if server is not None:
        at_exit.register(server.close_when_alone, settings.timeout)
    return _KeptState.identity


def known(environ: Mapping[str, str]) -> Optional[Identity]:
    """Return who this process is, if ``ddlrun`` says it, or another launcher has been asked; else None."""
    of_ddlrun = Identity.from_environ(environ)
    return of_ddlrun if of_ddlrun.store else _KeptState.identity


def admission(
    comm: Any = None, rendezvous: Optional[Rendezvous] = None
) -> Tuple[Identity, Settings, Optional[StoreServer]]:
    """Find out who this process is and how it is to behave: from the environment, or from one of the arguments.

    ``comm``: an mpi4py communicator. Also returned: the server of the job's store, if ``rendezvous`` has made one here.
    """
    settings = Settings.from_environ(os.environ)
    of_ddlrun = Identity.from_environ(os.environ)
    if rendezvous is not None and not isinstance(rendezvous, Rendezvous):
        raise InvalidArgument(
            f"init: rendezvous= is a {type(rendezvous).__name__}, not a ddl.Rendezvous; with the invitation of a "
            "ddl.JobStore: ddl.Rendezvous(rank, size, invitation)"
        )
    if not of_ddlrun.store:
        if rendezvous is not None:
            return rendezvous.admission(settings)
        return identity(os.environ, settings, comm) or of_ddlrun, settings, None
    for what, numbers in (
        ("communicator", None if comm is None else (comm.Get_rank(), comm.Get_size())),
        ("rendezvous", None if rendezvous is None else (rendezvous.rank, rendezvous.size)),
    ):
        if numbers is not None and numbers != (of_ddlrun.rank, of_ddlrun.size):
            raise ConfigError(
                f"ddlrun made this rank {of_ddlrun.rank} of {of_ddlrun.size}, but the {what} given to init() says "
                f"rank {numbers[0]} of {numbers[1]}; leave out one of the two"
            )
    return of_ddlrun, settings, None


# --- ways to share a text ---


def _of_communicator(comm: Any) -> Launched:
    # Not imported: a caller with a communicator of mpi4py has mpi4py, and DDL itself needs no MPI.
    here = comm.Split_type(sys.modules["mpi4py.MPI"].COMM_TYPE_SHARED)
    try:
        numbers = (comm.Get_rank(), comm.Get_size(), here.Get_rank(), here.Get_size())
    finally:
        here.Free()
    return Launched("mpi4py", *numbers, 0, 0, "")


def _by_communicator(comm: Any) -> Share:
    return lambda text: str(comm.bcast(text, root=0))


def _way_to_share(process: Launched, environ: Mapping[str, str], settings: Settings) -> Share:
    if not process.job:
        return lambda text: _by_pmi(int(environ["PMI_FD"]), text)
    folder = Path(settings.rendezvous_dir or Path.home() / ".ddl")
    name = hashlib.sha256(f"{process.launcher} {process.job}".encode()).hexdigest()[:24]
    return lambda text: _by_file(folder / f"job-{name}.json", text, process, settings.start_timeout)


def _by_pmi(fd: int, text: Optional[str]) -> str:
    """Speak version 1 of PMI, as far as it takes; MPI_Init may still speak it later."""
    sock = socket.socket(fileno=os.dup(fd))
    answers = sock.makefile("r", encoding="utf-8")

    def ask(line: str) -> Dict[str, str]:
        sock.sendall(f"cmd={line}\n".encode())
        answer = dict(word.split("=", 1) for word in answers.readline().split() if "=" in word)
        if answer.get("rc", "0") != "0" or not answer:
            raise RendezvousError(f"mpiexec answered {answer} to PMI's {line.split()[0]}")
        return answer

    def leave() -> None:
        """If a process began to speak PMI and ends without this word, mpiexec kills the others."""
        if "mpi4py.MPI" not in sys.modules:  # MPI_Finalize will say it
            ask("finalize")

    ask("init pmi_version=1 pmi_subversion=1")
    at_exit.register(leave)
    space = ask("get_my_kvsname")["kvsname"]
    if text is not None:  # values hold no blanks
        ask(f"put kvsname={space} key=ddl value={text.encode().hex()}")
    ask("barrier_in")
    return bytes.fromhex(ask(f"get kvsname={space} key=ddl")["value"]).decode()


def _by_file(path: Path, text: Optional[str], process: Launched, patience: float) -> str:
    try:
        if text is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(path, text)
            at_exit.register(_remove, path)
            return text
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}. Ranks that {process.launcher} started find one another by "
            "it; set DDL_RENDEZVOUS_DIR to a directory that all hosts share, or start the program by ddlrun"
        ) from error
    deadline = clock.now() + patience
    while clock.now() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_uid != os.getuid():
                raise ConfigError(f"{path} belongs to another user; remove it, or set DDL_RENDEZVOUS_DIR")
            there = path.read_text(encoding="utf-8")
            if _alive(there):
                return there
        time.sleep(_RETRY)
    raise RendezvousError(
        f"rank {process.rank} of {process.size}: rank 0 has not written {path} within {patience:g} s "
        "(DDL_START_TIMEOUT). Is it running, and do the hosts share that directory? If not, set DDL_RENDEZVOUS_DIR, or "
        "start by ddlrun"
    )


def _alive(text: str) -> bool:
    """Whether somebody answers where the text says: a file may be left from a job that was killed."""
    with contextlib.suppress(OSError):
        first_to_answer(json.loads(text)["addresses"], _ANSWERS)
        return True
    return False


def _write(path: Path, text: str) -> None:
    draft = path.with_suffix(f".{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def numbered(identity: Identity, hosts: List[str]) -> Identity:
    """Return ``identity`` with its host's number, where the launcher said none. ``hosts[r]`` is where rank r runs."""
    if identity.cross_size:
        return identity
    _, _, host, count = places(identity.rank, hosts)
    return replace(identity, cross_rank=host, cross_size=count)
