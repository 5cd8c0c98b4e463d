"""``ddl dump``: shows what ranks did last, also those that hang or are stopped.

It reads the memory of the ranks on this host (ddl/records), or has a ddlrun do that for all hosts of its job, or reads
what was dumped before. The ranks take no part in it, but for the signal that shows their Python stacks. Status 0; 1 if
there is no rank that this user may read, 2 for bad usage.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import pickle
import re
import sys
from pathlib import Path
from typing import List, Sequence

from ddl import clock
from ddl.errors import ConfigError, ProtocolError
from ddl.launch.show.requests import ask_job
from ddl.records.dump import RankDump, dump_message, file_name
from ddl.records.fr_trace import fr_traces
from ddl.records.living import WINDOW, with_what_runs
from ddl.records.memory import ProcessMemory, processes_with_records
from ddl.records.process import process_view
from ddl.tools.dump.report import report
from ddl.tools.dump_files import read_dumps
from ddl.tools.files import say_written, write_json

__all__ = ["add_arguments", "run"]

_PATIENCE = 15.0  # seconds that a ddlrun has to answer; it waits 5 s for its hosts


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl dump``."""
    parser.add_argument(
        "job",
        nargs="?",
        type=int,
        metavar="JOB",
        help="process of a ddlrun on this host: all ranks of its job, on all hosts; without: all ranks on this host",
    )
    parser.add_argument("--pid", type=int, action="append", metavar="PID", help="only this process; again for more")
    parser.add_argument("--from", dest="folder", metavar="DIR", help="what was dumped there, as ddlrun keeps it")
    parser.add_argument("--last", type=int, default=3, metavar="N", help="operations shown of each rank (default: 3)")
    parser.add_argument("--out", metavar="DIR", help="also write all of them to DIR/rank.N.json, for ddl blame")
    parser.add_argument(
        "--fr-trace", action="store_true", help="with --out: also write DIR/fr_trace.N, which PyTorch's fr_trace reads"
    )


def run(arguments: argparse.Namespace) -> int:
    """Read, print and write; return the exit status."""
    if arguments.last < 0:
        raise ConfigError(f"--last {arguments.last}: it must be 0 or more")
    if arguments.fr_trace and arguments.out is None:
        raise ConfigError("--fr-trace: it writes files, so --out DIR must say where")
    if sum(given not in (None, []) for given in (arguments.job, arguments.pid, arguments.folder)) > 1:
        raise ConfigError("JOB is the process of ddlrun, --pid that of a rank, --from a folder; give one of them")
    if arguments.folder is not None:
        dumps, _ = read_dumps(Path(arguments.folder))
    else:
        dumps = _of_host(arguments.pid) if arguments.job is None else _of_job(arguments.job)
    if not dumps:
        print("no process of this user on this host is a rank of a job")
        return 1
    if arguments.out is not None:
        _check_names(dumps)
    here = " on this host" if arguments.job is None and arguments.folder is None else ""
    print("\n".join(report(dumps, arguments.last, here)))
    if arguments.out is not None:
        folder = Path(arguments.out)
        folder.mkdir(parents=True, exist_ok=True)
        for dump in dumps:
            write_json(folder / file_name(dump), dump_message(dump))
        if arguments.fr_trace:
            _write_fr_traces(folder, dumps)
    return 0


def _of_job(job: int) -> List[RankDump]:
    answer = ask_job(job, "dump", _PATIENCE)
    folder = answer.get("folder", "")
    if not folder:
        raise ConfigError(str(answer.get("text")))
    print(answer["text"], file=sys.stderr)
    dumps, _ = read_dumps(Path(folder))
    return dumps


def _of_host(pids: Sequence[int]) -> List[RankDump]:
    memories = processes_with_records() if not pids else [_find(pid) for pid in pids]
    dumps = []
    for memory in memories:
        try:
            taken = clock.now()
            dumps.append(RankDump(taken, process_view(memory.pid), memory.record()))
        except ProtocolError:
            if pids:
                raise
        finally:
            memory.close()
    return sorted(with_what_runs(dumps, WINDOW), key=lambda dump: (str(dump.record.identity.get("job", "")), dump.rank))


def _find(pid: int) -> ProcessMemory:
    try:
        memory = ProcessMemory.find(pid)
    except PermissionError:
        raise ConfigError(f"--pid {pid}: this user may not read it; run 'ddl dump' as its user, or as root") from None
    if memory is None:
        raise ConfigError(f"--pid {pid}: it has ended, or is no rank (of a launcher or a shell, name its child)")
    return memory


def _check_names(dumps: Sequence[RankDump]) -> None:
    """Raise ``ConfigError`` if these ranks are of more jobs than one: their files would have the same names."""
    jobs = {dump.record.identity["job"] for dump in dumps if dump.rank >= 0}
    names = [file_name(dump) for dump in dumps]
    if len(jobs) > 1 or len(set(names)) < len(names):
        raise ConfigError("--out: ranks of several jobs are on this host; name all of one job, each by --pid PID")


def _write_fr_traces(folder: Path, dumps: Sequence[RankDump]) -> None:
    for rank, trace in fr_traces([dump.record for dump in dumps], library=_library()).items():
        path = folder / f"fr_trace.{rank}"
        path.write_bytes(pickle.dumps(trace, protocol=2))
        say_written(path)


def _library() -> str:
    """Return what PyTorch's analyser is to show as the library: "ddl" if the torch that is installed here takes it.

    Torch below 2.15 refuses names that it does not know. Without torch the files will be read elsewhere, by any torch.
    """
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "gloo"
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return "ddl" if numbers >= [2, 15] else "gloo"
