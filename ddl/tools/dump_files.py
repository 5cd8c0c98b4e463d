"""Reads a folder of dumps of the ranks of a job, as ``ddl dump --out`` and ``ddlrun`` write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar

from ddl.errors import ConfigError, ProtocolError
from ddl.records.dump import JOB_FILE, JobEnd, RankDump, parse_dump, parse_end

__all__ = ["read_dumps"]

T = TypeVar("T")


def read_dumps(folder: Path) -> Tuple[List[RankDump], Optional[JobEnd]]:
    """Return the dumps in ``folder``, by rank, and how the job has ended, if that is known.

    ConfigError if there are none, if one cannot be read, or if they are of several jobs.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder")
    paths = sorted(folder.glob("rank.*.json"), key=lambda path: (len(path.name), path.name))
    end_path = folder / JOB_FILE
    end = _read(end_path, parse_end) if end_path.exists() else None
    if not paths and end is None:
        raise ConfigError(f"{folder}: it has no dumps of ranks; write them with 'ddl dump --out {folder}' on each host")
    dumps = [_read(path, parse_dump) for path in paths]
    ranks: Dict[int, Path] = {}
    jobs: Dict[str, Path] = {}
    for path, dump in zip(paths, dumps):
        other = ranks.setdefault(dump.number, path)
        if other is not path:
            raise ConfigError(f"{path}: it is of rank {dump.number}, as {other.name} is")
        if "job" in dump.record.identity:  # else it was before ``init``
            jobs.setdefault(dump.record.identity["job"], path)
    if len(jobs) > 1:
        first, second = list(jobs.values())[:2]
        raise ConfigError(f"{second}: it is of another job than {first.name}; use a folder for each job")
    return dumps, end


def _read(path: Path, parse: Callable[[Mapping[str, Any]], T]) -> T:
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: it cannot be read: {error}") from error
    except ProtocolError as error:
        raise ConfigError(f"{path}: {error}") from error
