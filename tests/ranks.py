"""Runs a function on several real ranks of one job, for tests: ``run(4, "module.py", function, …)``.

Every rank is a fresh process, forked in some milliseconds from a server. The server has loaded numpy, DDL, what test
modules import, and for an adapter its framework. A rank has the environment that ddlrun would give it. The store is
in this process. A rank that fails makes the test fail with that rank's traceback; a rank that does not end in time is
killed and named.
"""

from __future__ import annotations

import importlib.util
import itertools
import multiprocessing
import os
import secrets
import sys
import tempfile
import time
import traceback
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import drivers

from ddl.store.server import StoreServer

_context = multiprocessing.get_context("forkserver")
#: Of a job; less where time is short, as on a GPU that is lent. Operations get less than half of it.
_SECONDS = float(os.environ.get("RANKS_SECONDS", "240"))
#: A rank loads its function's test module, and with that pytest: a tenth of a second of a processor, of each rank.
_PRELOAD = ("numpy", "ddl.api", "ddl.memory", "pytest", "hypothesis", "psutil")
#: An optimizer's first step imports torch._dynamo; all together are three seconds of a processor for each rank.
_PRELOAD_TORCH = (*_PRELOAD, "torch", "torch._dynamo", "ddl_torch")
#: Importing it takes four to six seconds. TensorFlow starts its threads with the first op: there must be none before.
_PRELOAD_TENSORFLOW = (*_PRELOAD, "tensorflow", "keras", "ddl_tensorflow")
#: By the folder of tests that a test module is in.
_PRELOADS = {
    "torch": _PRELOAD_TORCH,
    "gpu": _PRELOAD_TORCH,
    "tf": _PRELOAD_TENSORFLOW,
    "caffe": (*_PRELOAD, "caffe", "ddl_caffe"),
    "chainer": (*_PRELOAD, "chainer", "chainermn", "ddl_chainer"),
    "theano": (*_PRELOAD, "theano.tensor", "ddl_theano"),
    "lightgbm_ranks": (*_PRELOAD, "lightgbm", "ddl_lightgbm"),
    "xgboost_ranks": (*_PRELOAD, "xgboost", "ddl_xgboost"),
}

_TESTS = Path(__file__).resolve().parent

#: What the server has loaded.
_served: Sequence[str] = ()

#: A rank's answer when it was expected to die: its exit code.
Died = type("Died", (int,), {})


#: Where this rank's answer goes; a rank that forks a child that outlives it must close it there.
answers: Connection


#: The meetings that this rank has been at.
_meetings = itertools.count()


def meet(rank: Optional[int] = None, size: Optional[int] = None) -> None:
    """Return when all ranks of the job have called this as often. ``rank``, ``size``: as ddlrun would have said.

    DDL takes no part: a rank that dies right afterwards interrupts nothing that another one has under way.
    """
    folder, number = Path(os.environ["RANKS_FOLDER"]), next(_meetings)
    rank = int(os.environ["DDL_RANK"]) if rank is None else rank
    size = int(os.environ["DDL_SIZE"]) if size is None else size
    (folder / f"{number}.{rank}").touch()
    deadline = time.monotonic() + 100
    while any(not (folder / f"{number}.{each}").exists() for each in range(size)):
        if time.monotonic() > deadline:
            came = sorted(int(file.suffix[1:]) for file in folder.glob(f"{number}.*"))
            raise TimeoutError(f"only ranks {came} of {size} came to meeting {number} within 100 s")
        time.sleep(0.002)


def environment(rank: int, size: int, store: str, secret: str, local: Optional[Sequence[int]] = None) -> Dict[str, str]:
    """Return ddlrun's variables for one rank."""
    return {
        "DDL_RANK": str(rank),
        "DDL_SIZE": str(size),
        "DDL_LOCAL_RANK": str(rank),
        "DDL_LOCAL_SIZE": str(size),
        "DDL_CROSS_RANK": "0",
        "DDL_CROSS_SIZE": "1",
        "DDL_STORE": store,
        "DDL_SECRET": secret,
        # As ddlrun's, where there are no more cores than ranks.
        **dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1"),
    }


def _serve(preload: Sequence[str]) -> None:
    """Let ranks be forked from a server that has loaded ``preload``; there is one at a time."""
    global _served
    if preload != _served:
        forkserver._forkserver._stop()  # private, and the way in which CPython's own tests end it
        _context.set_forkserver_preload(list(preload))
        _served = preload


def prepare(path: Path) -> None:
    """Start the server of ranks for a test in ``path``, unless it runs, and wait until it has loaded what they need."""
    preload = _preload_of(path)
    if preload != _served:
        _serve(preload)
        process = _context.Process(target=_nothing)
        process.start()
        process.join(100)


def _preload_of(path: Path) -> Sequence[str]:
    return _PRELOAD if drivers.is_real() else _PRELOADS.get(path.relative_to(_TESTS).parts[0], _PRELOAD)


def _nothing() -> None:
    pass


def _load(path: str, name: str) -> Callable[..., Any]:
    module_name = "ranks_" + os.path.basename(path)[:-3]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # so that what is defined there can be pickled
    spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, name)
    return function


def _main(
    connection: Connection, path: str, name: str, args: Sequence[Any], env: Dict[str, str], initialise: bool
) -> None:
    global answers
    answers = connection
    os.environ.update(env)
    sys.path.insert(0, os.path.dirname(__file__))
    try:
        import ddl

        if "torch" in sys.modules and "OMP_NUM_THREADS" in env:  # it was loaded without that
            sys.modules["torch"].set_num_threads(int(env["OMP_NUM_THREADS"]))
        if "theano" in sys.modules:  # so was this: ddlrun gives each rank a folder of compiled code
            folder = vars(type(sys.modules["theano"].config))["compiledir"]
            folder.val = folder.filter(f"{folder.val}-rank{env['DDL_LOCAL_RANK']}")
        function = _load(path, name)
        if initialise:
            ddl.init()
            if "DDL_ELASTIC" not in os.environ:  # there ranks come and go; of others all are there when a test begins
                meet()
        answer = ("ok", function(*args))
        ddl.shutdown()
    except BaseException:
        answer = ("error", traceback.format_exc())
    connection.send(answer)
    connection.close()


def run(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    env: Optional[Dict[str, str]] = None,
    env_of: Optional[Callable[[int], Dict[str, str]]] = None,
    timeout: float = _SECONDS,
    may_die: Sequence[int] = (),
    stopped: Sequence[int] = (),
    on_start: Optional[Callable[[List[int]], None]] = None,
    initialise: bool = True,
) -> List[Any]:
    """Run ``function(*args)`` on ``size`` ranks after ``ddl.init()`` and return their answers in rank order.

    ``function`` is a top-level function of a test module. ``env`` and ``env_of(rank)`` add variables. Ranks in
    ``may_die`` may end without an answer: theirs is ``Died(exit code)``. Ranks in ``stopped`` do not end by
    themselves: they are killed when all others have answered. ``on_start`` gets the process ids. Without
    ``initialise`` the function calls ``ddl.init()`` itself.
    """
    __tracebackhide__ = True
    secret = secrets.token_bytes(32)
    path = function.__code__.co_filename
    # After a fork, CUDA cannot be used if the server has begun to use it; to load torch may be enough for that.
    _serve(_preload_of(Path(path)))
    with tempfile.TemporaryDirectory() as folder, StoreServer(secret, size) as store:
        processes, ends = [], []
        for rank in range(size):
            receiver, theirs = _context.Pipe(duplex=False)
            variables = environment(rank, size, store.address, secret.hex())
            limit = f"{min(100.0, 0.45 * _SECONDS):g}"
            variables.update({"DDL_TIMEOUT": limit, "DDL_START_TIMEOUT": limit, "RANKS_FOLDER": folder})
            variables.update(env or {})
            variables.update(env_of(rank) if env_of else {})
            process = _context.Process(
                target=_main, args=(theirs, path, function.__name__, args, variables, initialise)
            )
            process.start()
            theirs.close()
            processes.append(process)
            ends.append(receiver)
        try:
            if on_start is not None:
                on_start([process.pid or 0 for process in processes])
            return _collect(processes, ends, timeout, (*may_die, *stopped), stopped)
        finally:
            for process, end in zip(processes, ends):
                if process.is_alive():
                    process.kill()
                process.join()
                end.close()


def _collect(
    processes: List[Any], ends: List[Connection], timeout: float, may_die: Sequence[int], stopped: Sequence[int]
) -> List[Any]:
    __tracebackhide__ = True
    deadline = time.monotonic() + timeout
    answers: List[Any] = [None] * len(ends)
    open_ends = dict(enumerate(ends))
    errors = []
    while open_ends:
        if set(open_ends) <= set(stopped):
            for rank in open_ends:
                processes[rank].kill()
        ready = wait(list(open_ends.values()), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"ranks {sorted(open_ends)} did not end within {timeout} s")
        for rank, end in list(open_ends.items()):
            if end not in ready:
                continue
            del open_ends[rank]
            try:
                kind, answers[rank] = end.recv()
            except EOFError:
                processes[rank].join()
                kind, answers[rank] = "died", Died(processes[rank].exitcode)
            if kind == "error" or (kind == "died" and rank not in may_die):
                last = str(answers[rank]).strip().rpartition("\n")[2]  # the error itself, behind its traceback
                errors.append(f"--- rank {rank} ({kind}): {last} ---\n{answers[rank]}")
    assert not errors, "\n".join(errors)
    return answers
