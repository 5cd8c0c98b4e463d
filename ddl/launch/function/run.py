"""``ddl.run(function, np=2)``: call a function on many ranks of this machine, from a notebook or a script.

ddlrun runs in a process of its own (job.py), so the caller keeps its signals, threads and children. Each rank
is a new process, too (rank.py). The function and the results go through files in a directory that only this
user can read: nothing that comes over a socket is unpickled.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import pickle
import selectors
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ddl.errors import InvalidArgument, RankFailed
from ddl.launch.ask.hosts import bare_name, parse_hostfile, parse_hosts
from ddl.net.interfaces import is_local

__all__ = ["pickled", "run"]

_PATIENCE = 5.0  #: seconds that ddlrun has to end its ranks, which takes two


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Optional[Mapping[str, Any]] = None,
    num_proc: Optional[int] = None,
    min_num_proc: Optional[int] = None,
    max_num_proc: Optional[int] = None,
    slots: Optional[int] = None,
    reset_limit: Optional[int] = None,
    cooldown_range: Optional[Tuple[int, int]] = None,
    hosts: Optional[str] = None,
    hostfile: Optional[str] = None,
    host_discovery_script: Optional[str] = None,
    start_timeout: Optional[float] = None,
    ssh_port: Optional[int] = None,
    ssh_identity_file: Optional[str] = None,
    disable_cache: Optional[bool] = None,
    output_filename: Optional[str] = None,
    verbose: Optional[int] = None,
    use_gloo: Optional[bool] = None,
    use_mpi: Optional[bool] = None,
    mpi_args: Optional[str] = None,
    network_interface: Optional[str] = None,
    executable: Optional[str] = None,
    network_interfaces: Optional[str] = None,
    np: Optional[int] = None,
    min_np: Optional[int] = None,
    max_np: Optional[int] = None,
) -> List[Any]:
    """Call ``func(*args, **kwargs)`` on each of ``np`` (or ``num_proc``) ranks; return their results in rank order.

    Blocking. The ranks are new processes on this machine, in this directory, with this ``sys.path``; ``func`` calls
    ``ddl.init()`` itself, as a script would. What they print appears here, with their rank before each line. func and
    results are pickled: what other modules define needs nothing, what a notebook or the script itself defines needs
    cloudpickle (``pip install cloudpickle``).

    start_timeout: seconds that ranks wait for one another at start. output_filename: a directory for files of output;
    only rank 0's appears here, too. network_interfaces: for data, as ddlrun's. verbose: say what ddlrun does.
    executable: the ranks' Python; another one has DDL and what else is installed from its own library. hosts,
    hostfile: only this machine's names, with slots, instead of ``np``; without any number there is one rank. The
    others, and the order, are Horovod's: ssh does nothing here, and what has no effect is named on stderr
    (docs/from_horovod.md).

    When a rank fails, the others are ended and ``RankFailed`` is raised: it has the traceback of the rank that the
    failure began with, or the signal that killed it. Ctrl-C ends the ranks. Raises ``InvalidArgument`` for what cannot
    be pickled, for another machine, and for numbers of ranks that contradict one another.

    >>> ddl.run(lambda: ddl.init() or ddl.rank(), np=2)
    [0, 1]
    """
    if not callable(func):
        raise InvalidArgument(f"ddl.run: {func!r:.100} cannot be called; pass a function, and its arguments as args=")
    if not isinstance(args, Iterable) or isinstance(args, str) or not isinstance(kwargs or {}, Mapping):
        raise InvalidArgument("ddl.run: args= is a tuple or a list of arguments, kwargs= a dict of those with names")
    size = _size(_either("num_proc", num_proc, "np", np), hosts, hostfile)
    options = {
        "-np": size,
        "--start-timeout": start_timeout,
        "--output-filename": output_filename,
        "--network-interfaces": network_interfaces,
        "--network-interface": network_interface,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--mpi-args": mpi_args,
    }
    elastic = {
        "--min-num-proc": _either("min_num_proc", min_num_proc, "min_np", min_np),
        "--max-num-proc": _either("max_num_proc", max_num_proc, "max_np", max_np),
        "--slots-per-host": slots,
        "--reset-limit": reset_limit,
        "--blacklist-cooldown-range": cooldown_range,
        "--host-discovery-script": host_discovery_script,
    }
    _say_idle([option for option, value in elastic.items() if value is not None])
    switches = {"--verbose": verbose, "--disable-cache": disable_cache, "--gloo": use_gloo, "--mpi": use_mpi}
    arguments = ["--launcher=ssh"]  # this machine alone, whatever hosts an allocation that we are in has
    arguments += [f"{option}={value}" for option, value in options.items() if value is not None]
    arguments += [switch for switch, given in switches.items() if given]
    call = pickled((func, tuple(args), dict(kwargs or {})), "the function and its arguments")
    folder = Path(tempfile.mkdtemp(prefix="ddl-run-"))
    try:
        python = executable or sys.executable
        (folder / "call").write_bytes(pickle.dumps((_search_path(python), call)))
        rank = [python, "-u", "-m", "ddl.launch.function.rank", str(folder)]
        status = _job([str(folder), str(os.getpid()), *arguments, "--", *rank])
        return _results(folder, size, status)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _either(name: str, value: Optional[int], other_name: str, other: Optional[int]) -> Optional[int]:
    """Return what is given under one of two names. InvalidArgument if both are, and differ."""
    if value is not None and other is not None and value != other:
        raise InvalidArgument(f"ddl.run: {name}={value} and {other_name}={other} say different numbers of ranks")
    return value if other is None else other


def _say_idle(options: Sequence[str]) -> None:
    """Name the options of elastic jobs that were given: there is a result for each rank that the job begins with."""
    if options:
        verb = "has" if len(options) == 1 else "have"
        reason = "a function is called on the ranks that the job begins with, and the first that fails ends the job"
        print(f"ddl.run: {', '.join(options)} {verb} no effect: {reason}", file=sys.stderr)


def _size(given: Optional[int], hosts: Optional[str], hostfile: Optional[str]) -> int:
    """Return the number of ranks. InvalidArgument if it makes no sense, or if another machine is among the hosts."""
    named = parse_hosts(hosts) if hosts is not None else ()
    if hostfile is not None:
        named += parse_hostfile(Path(hostfile).read_text(encoding="utf-8"), hostfile)
    for host in named:
        if not is_local(bare_name(host.name)):
            raise InvalidArgument(
                f"ddl.run: {host.name} is another machine, and functions are called on this one only: they travel in "
                "files that nobody else can read. Put it into a script, and start that by ddlrun -H"
            )
    slots = sum(host.slots or 0 for host in named)
    size = slots or 1 if given is None else given
    if not isinstance(size, int) or size < 1:
        raise InvalidArgument(f"ddl.run: np={given!r}: say how many ranks, as np=2")
    if 0 < slots < size:
        raise InvalidArgument(f"ddl.run: np={size} is more than the {slots} slots of the hosts")
    return size


def _search_path(executable: str) -> List[str]:
    """Return where ranks find modules: where we do, but for this Python's own library if theirs is another Python."""
    return sys.path if executable == sys.executable else [entry for entry in sys.path if not _of_this_python(entry)]


def _of_this_python(folder: str) -> bool:
    """Return whether ``folder`` is, or is in, a directory where this Python keeps its own or installed modules."""
    library = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    library.add(site.getusersitepackages())
    return not library.isdisjoint(map(str, (Path(folder), *Path(folder).parents)))


class _Pickler(pickle.Pickler):
    """Without cloudpickle, what ``__main__`` defines would be pickled by its name, which means something else there."""

    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__" and hasattr(obj, "__qualname__"):
            raise pickle.PicklingError(f"{obj.__qualname__} is defined in a notebook or in the script itself")
        return NotImplemented


def pickled(what: Any, name: str) -> bytes:
    """Return ``what`` as bytes, by cloudpickle if it is installed; InvalidArgument says why that is impossible."""
    try:
        import cloudpickle
    except ImportError:
        cloudpickle = None
    buffer = io.BytesIO()
    try:
        (_Pickler(buffer) if cloudpickle is None else cloudpickle.Pickler(buffer)).dump(what)
    except Exception as error:  # whatever an object's own reduction raises
        hint = "" if cloudpickle else "; cloudpickle can do more: pip install cloudpickle"
        raise InvalidArgument(f"ddl.run: {name} cannot be pickled: {error}{hint}") from error
    return buffer.getvalue()


def _job(arguments: Sequence[str]) -> int:
    """Run ddlrun, and pass on what it prints; return its status. Whatever is raised here ends it."""
    root = str(Path(__file__).resolve().parents[2])  # DDL, unless it is installed: another Python needs one of its own
    paths = ["" if _of_this_python(root) else root, os.environ.get("PYTHONPATH")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with subprocess.Popen(
        [sys.executable, "-m", "ddl.launch.function.job", *arguments],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C comes to us, and we pass it on
    ) as process:
        try:
            _forward(process)
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_PATIENCE)
            raise
        finally:
            if process.poll() is None:
                process.kill()  # its ranks die with it


def _forward(process: subprocess.Popen[bytes]) -> None:
    """Write what the process prints to ``sys.stdout`` and ``sys.stderr``, which in a notebook are no descriptors."""
    decoder = codecs.getincrementaldecoder("utf-8")
    assert process.stdout is not None and process.stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, (decoder("replace"), "stdout"))
        selector.register(process.stderr, selectors.EVENT_READ, (decoder("replace"), "stderr"))
        while selector.get_map():
            for key, _ in selector.select():
                decode, name = key.data
                data = os.read(key.fd, 1 << 16)
                stream = getattr(sys, name)
                stream.write(decode.decode(data, final=not data))
                stream.flush()
                if not data:
                    selector.unregister(key.fileobj)


def _results(folder: Path, size: int, status: int) -> List[Any]:
    """Return what the ranks have left. RankFailed if one of them failed."""
    try:
        ended: Dict[str, Any] = json.loads((folder / "ended").read_text())
    except FileNotFoundError:
        raise RankFailed(
            -1, f"the process that runs the ranks ended with status {status}; see what it printed"
        ) from None
    if ended["stopped"] is not None:
        raise RankFailed(-1, f"the process that runs the ranks was stopped by {ended['stopped']}, and has stopped them")
    if ended["rank"] is not None:
        error = folder / f"error.{ended['rank']}"
        text = error.read_text(encoding="utf-8", errors="replace") if error.exists() else "\n".join(ended["tail"])
        raise RankFailed(ended["rank"], f"{ended['text']}\n\n{text}".rstrip())
    results = []
    for rank in range(size):
        path = folder / f"result.{rank}"
        if not path.exists():
            raise RankFailed(rank, f"rank {rank} ended without a result: it left by os._exit(), or started no Python")
        results.append(pickle.loads(path.read_bytes()))
    return results
