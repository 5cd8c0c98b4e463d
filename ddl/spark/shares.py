"""A DataFrame as Parquet files in a directory that all hosts share, and a rank's share of their rows as numpy arrays.

Spark writes the files, pyarrow reads them. A rank reads only the row groups that its rows are in. All ranks have the
same number of rows, so they make the same number of steps: where the rows do not divide, the first ones come again at
the end, as with torch's DistributedSampler.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np
import pyarrow
from pyarrow.dataset import dataset
from pyarrow.fs import FileSystem, LocalFileSystem

import ddl
from ddl.adapter.consistency import check_consistent
from ddl.errors import InvalidArgument

__all__ = ["as_arrays", "numbers", "read_share", "written"]

_LOCAL = "file://"


@contextlib.contextmanager
def written(frames: Sequence[Any], work_dir: str) -> Iterator[List[str]]:
    """Write DataFrames as Parquet below ``work_dir``, a path or a URI; give their URIs, and delete them after."""
    base = work_dir if "://" in work_dir else f"{_LOCAL}{os.path.abspath(work_dir)}"
    places = [f"{base.rstrip('/')}/ddl-{uuid.uuid4().hex}.parquet" for _ in frames]
    try:
        reachable = [_file_system(place) for place in places]  # before Spark writes what pyarrow could not delete
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InvalidArgument(f"work_dir={work_dir!r}: pyarrow has no way to such files: {error}") from error
    try:
        for frame, place in zip(frames, places):
            frame.write.parquet(place)
        yield places
    finally:
        for files, path in reachable:
            with contextlib.suppress(FileNotFoundError):  # Spark has failed before it has made it
                files.delete_dir(path)


def _file_system(place: str) -> Tuple[FileSystem, str]:
    """Return pyarrow's file system of a URI, and the path there. Spark takes "%20" in a URI for these characters."""
    if place.startswith(_LOCAL):
        return LocalFileSystem(), place[len(_LOCAL) :]
    files, path = FileSystem.from_uri(place)
    return files, path


def numbers(frame: Any, name: str) -> Any:
    """Return a column of a DataFrame, as an array if it has vectors of Spark's ML.

    Raises ``InvalidArgument`` if it is not there, or has no numbers.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import ArrayType, BooleanType, DoubleType, FloatType, IntegralType

    if name not in frame.columns:
        raise InvalidArgument(f"the DataFrame has no column {name!r}; it has {', '.join(frame.columns)}")
    kind = frame.schema[name].dataType
    if isinstance(kind, VectorUDT):
        return vector_to_array(frame[name])
    while isinstance(kind, ArrayType):
        kind = kind.elementType
    if not isinstance(kind, (BooleanType, DoubleType, FloatType, IntegralType)):
        raise InvalidArgument(
            f"column {name!r} has {frame.schema[name].dataType.simpleString()}; DDL reads numbers, and lists and "
            "vectors of them: cast it, as col(NAME).cast('double')"
        )
    return frame[name]


def read_share(place: str, columns: Sequence[str], what: str) -> Dict[str, np.ndarray]:
    """Return this rank's share of the rows, a column each. ``what``: they are, for errors. Collective, blocking.

    Raises ``InvalidArgument``, on all ranks, if they do not see the same files, or if there are fewer rows than ranks.
    """
    groups, counts, problem = _row_groups(place)
    total, world = sum(counts), ddl.world()
    if not problem and total < world.size:
        problem = f"{total} {what} are too few for {world.size} ranks: each needs one"
    advice = "work_dir must be a directory that the hosts of the driver and of all executors share"
    check_consistent(world, f"the {what} in {place}", [f"{count} rows" for count in counts], advice, problem)
    own = -(-total // world.size)
    runs = _runs(world.rank * own, own, total)
    tables = [_rows(groups, counts, begin, end, list(columns)) for begin, end in runs]
    return as_arrays(pyarrow.concat_tables(tables), columns)


def _runs(begin: int, count: int, total: int) -> List[Tuple[int, int]]:
    """Return the rows from ``begin`` on as ranges below ``total``; after the last row the first one comes again."""
    begin %= total
    end = min(begin + count, total)
    left = begin + count - end
    return [(begin, end), (0, left)] if left else [(begin, end)]


def _row_groups(place: str) -> Tuple[List[Any], List[int], str]:
    """Return the row groups of all files in Spark's order, how many rows each has, and what is wrong."""
    try:
        files, path = _file_system(place)
        groups = [
            group
            for part in dataset(path, filesystem=files, format="parquet").get_fragments()
            for group in part.split_by_row_group()
        ]
        return groups, [group.row_groups[0].num_rows for group in groups], ""
    except OSError as error:
        return [], [], f"it cannot be read: {error}; work_dir must be a directory that all hosts share"


def _rows(groups: Sequence[Any], counts: Sequence[int], begin: int, end: int, columns: List[str]) -> Any:
    """Return rows ``begin`` to ``end`` of all groups as a table."""
    parts, first = [], 0
    for group, count in zip(groups, counts):
        low, high = max(begin - first, 0), min(end - first, count)
        if low < high:
            parts.append(group.to_table(columns=columns).slice(low, high - low))
        first += count
    return pyarrow.concat_tables(parts)


def as_arrays(table: Any, columns: Sequence[str]) -> Dict[str, np.ndarray]:
    """Return columns of a table as arrays whose first dimension is the rows."""
    return {name: _array(table.column(name), name) for name in columns}


def _array(column: Any, name: str) -> np.ndarray:
    values = column.combine_chunks()
    shape = [len(values)]
    while not values.null_count and pyarrow.types.is_list(values.type) and len(values):
        lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) != 1:
            raise InvalidArgument(
                f"column {name} has lists of {lengths[0]} and of {lengths[-1]} numbers; make them equal"
            )
        shape.append(int(lengths[0]))
        values = values.flatten()
    if values.null_count:
        raise InvalidArgument(f"column {name} has nulls; drop these rows, or fill them (df.na.fill)")
    array: np.ndarray = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "biuf":
        raise InvalidArgument(f"column {name} has {column.type}; DDL reads numbers, and lists and vectors of them")
    return array.reshape(shape)
