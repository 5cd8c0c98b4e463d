"""What a probe finds on its own host: versions, interfaces, names, limits, memory, processors, container.

Nothing here waits for long. Threads ask the name service, which may be slow, and are left alone after the deadline.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import resource
import secrets
import socket
import threading
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar

from ddl import clock
from ddl._version import __version__
from ddl.bootstrap.cores import quota
from ddl.errors import ResourceError
from ddl.launch.ask.hosts import bare_name
from ddl.net.address import resolve
from ddl.net.encryption import prepare_encryption
from ddl.net.interfaces import interfaces, source_towards
from ddl.tools.doctor.facts import Local, Task
from ddl.tools.doctor.gpus import GpuInquiry

__all__ = ["answers_in_time", "examine"]

_NAME_SECONDS = 4.0
_MEMORY = 64 << 20  # bytes of the memfd that is tried; it is sparse and costs nothing
_T = TypeVar("_T")


def examine(task: Task, chosen: str, peers: Mapping[int, str]) -> Local:
    """Return what this host is like. ``chosen`` is its address for data, ``peers`` are those of all hosts."""
    with GpuInquiry(task.patience / 2) as inquiry:  # it goes on while the rest is looked at
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        own = socket.gethostname()
        others = {number: address for number, address in peers.items() if address != chosen}
        routes = {str(number): source_towards(address) or "" for number, address in others.items()}
        names, reverse, unanswered = _names((*task.hosts, own), sorted(set(peers.values())))
        return Local(
            name=own,
            version=__version__,
            python=platform.python_version(),
            kernel=platform.release(),
            core_problem=_core_problem(),
            directory_problem=_directory_problem(task.directory),
            script_problem=_script_problem(task),
            interfaces=interfaces(),
            chosen=chosen,
            routes=routes,
            names=names,
            unanswered=unanswered,
            reverse=reverse,
            descriptors=soft,
            descriptors_hard=hard,
            memlock=memlock,
            pinning=_pinning(),
            cores=os.cpu_count() or 1,
            usable=len(os.sched_getaffinity(0)),
            quota=quota(),
            shm=_shm_bytes(),
            memfd_problem=_memfd_problem(),
            container=_container(os.environ),
            refused=_refused(),
            encryption_problem=_encryption_problem(),
            gpus=inquiry.result(),
        )


def _core_problem() -> str:
    try:
        from ddl import _core

        _core.arena_fd()  # takes the memory that a job would take
    except Exception as error:  # whatever it is: it is what a rank would die of
        return f"{type(error).__name__}: {error}"
    return ""


def _encryption_problem() -> str:
    try:
        prepare_encryption(True, os.environ.get("DDL_OPENSSL", ""))
    except ResourceError as error:
        return str(error)
    return ""


def _directory_problem(directory: str) -> str:
    if not os.path.isdir(directory):
        return f"the directory {directory} is not there"
    return "" if os.access(directory, os.X_OK) else f"the directory {directory} cannot be entered"


def _script_problem(task: Task) -> str:
    path = os.path.join(task.directory, task.script)
    if not task.script or not os.path.isdir(task.directory):
        return ""
    if not os.path.isfile(path):
        return f"the script {path} is not there"
    return "" if os.access(path, os.R_OK) else f"the script {path} cannot be read"


def _names(
    hosts: Sequence[str], known: Sequence[str]
) -> Tuple[Dict[str, Tuple[str, ...]], Dict[str, str], Tuple[str, ...]]:
    """Ask for the addresses of the hosts' names, and for the names of their addresses."""

    def forward(host: str) -> Tuple[str, ...]:
        return tuple(resolve(bare_name(host)))

    def backward(address: str) -> str:
        return socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]

    deadline = clock.now() + _NAME_SECONDS
    nothing: Tuple[str, ...] = ()
    there = answers_in_time(forward, hosts, nothing, deadline)
    back = answers_in_time(backward, known, "", deadline)
    unanswered = tuple(name for name in hosts if name not in there)
    unanswered += tuple(address for address in known if address not in back)
    return there, back, unanswered


def answers_in_time(ask: Callable[[str], _T], questions: Sequence[str], none: _T, deadline: float) -> Dict[str, _T]:
    """Return the answers that came by ``deadline``; ``none`` where the answer was an error."""
    answers: Dict[str, _T] = {}

    def ask_once(question: str) -> None:
        try:
            answers[question] = ask(question)
        except OSError:
            answers[question] = none

    threads = [threading.Thread(target=ask_once, args=(question,), daemon=True) for question in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - clock.now()))
    return dict(answers)


def _pinning() -> str:
    adapters = _listed("/sys/class/infiniband")
    if adapters:
        return f"the RDMA adapter {adapters[0]}"
    return "the GPU" if os.path.exists("/dev/nvidia0") else ""


def _listed(directory: str) -> List[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _shm_bytes() -> int:
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return state.f_blocks * state.f_frsize


def _memfd_problem() -> str:
    """Do what two ranks do: one makes memory and hands it over a Unix socket, the other maps and reads it."""
    with contextlib.ExitStack() as stack:
        step = "memfd_create"
        try:
            memory = os.memfd_create("ddl-doctor", os.MFD_CLOEXEC)
            stack.callback(os.close, memory)
            step = "ftruncate of a memfd"
            os.ftruncate(memory, _MEMORY)
            step = "an abstract Unix socket"
            name = "\0ddl-doctor-" + secrets.token_hex(8)
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(name)
            listener.listen(1)
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.settimeout(2)
            client.connect(name)
            server = stack.enter_context(listener.accept()[0])
            server.settimeout(2)
            step = "passing a descriptor over a Unix socket"
            socket.send_fds(client, [b"x"], [memory])
            _, received, _, _ = socket.recv_fds(server, 1, 1)
            for descriptor in received:
                stack.callback(os.close, descriptor)
            step = "mmap of a memfd"
            mapped = stack.enter_context(mmap.mmap(memory, _MEMORY))
            theirs = stack.enter_context(mmap.mmap(received[0], _MEMORY))
            mapped[-1] = 42
            return "" if theirs[-1] == 42 else "what one process writes to a memfd is not what the other reads"
        except (OSError, IndexError) as error:
            return f"{step}: {error}"


def _container(environ: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    for variable in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if variable in environ:
            return "apptainer"
    for path, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if os.path.exists(path):
            return kind
    return ""


def _refused() -> Tuple[str, ...]:
    """Return what DDL, or what is commonly run with it, asks of the kernel and is not given."""
    refused = []
    with contextlib.suppress(AttributeError):
        tries: Tuple[Tuple[str, Callable[[], object]], ...] = (
            ("sched_setaffinity", lambda: os.sched_setaffinity(0, os.sched_getaffinity(0))),
            ("setsockopt(TCP_CONGESTION)", _congestion),
        )
        for name, attempt in tries:
            try:
                attempt()
            except OSError:
                refused.append(name)
    return tuple(refused)


def _congestion() -> Optional[bytes]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        current = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, current.rstrip(b"\0"))
        return current
