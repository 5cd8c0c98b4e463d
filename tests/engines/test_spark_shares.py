"""A rank's share of Parquet files, as estimators read them; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import ranks

import ddl

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install pyarrow)")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (pip install pyarrow)")


def write(folder: Path, counts: List[int]) -> int:
    """Write files with row groups of three rows; the numbers go on from file to file."""
    first = 0
    for number, count in enumerate(counts):
        values = np.arange(first, first + count)
        rows = {"n": values, "pair": [[float(value), 0.5] for value in values], "other": ["x"] * count}
        parquet.write_table(pyarrow.table(rows), folder / f"part-{number:05}.parquet", row_group_size=3)
        first += count
    return first


def shares(place: str) -> Dict[str, Any]:
    from ddl.spark.shares import read_share

    share = read_share(place, ["pair", "n"], "training rows")
    assert share["pair"].shape == (len(share["n"]), 2) and (share["pair"][:, 0] == share["n"]).all()
    return {name: array.tolist() for name, array in share.items()}


@pytest.mark.processes
@pytest.mark.parametrize("counts", [[8, 4], [5, 0, 2], [1, 1, 1], [4]])
def test_all_rows_in_order_and_as_many_on_each_rank(counts: List[int], tmp_path: Path) -> None:
    total = write(tmp_path, counts)
    answers = ranks.run(3, shares, f"file://{tmp_path}")
    assert len({len(answer["n"]) for answer in answers}) == 1
    together = [number for answer in answers for number in answer["n"]]
    assert together == [number % total for number in range(len(together))] and total <= len(together) < total + 3


def refused(places: List[str]) -> str:
    from ddl.spark.shares import read_share

    with pytest.raises(ddl.InvalidArgument) as caught:
        read_share(places[ddl.rank() % len(places)], ["n"], "validation rows")
    return str(caught.value)


@pytest.mark.processes
def test_ranks_that_do_not_see_the_same_rows(tmp_path: Path) -> None:
    """As where work_dir is a folder of each host's own."""
    for name, counts in (("a", [6]), ("b", [4])):
        (tmp_path / name).mkdir()
        write(tmp_path / name, counts)
    for text in ranks.run(2, refused, [f"file://{tmp_path}/a", f"file://{tmp_path}/b"]):
        assert "on rank 0 there is 3 rows; on rank 1 1 rows. work_dir must be a directory that the hosts" in text
    for text in ranks.run(2, refused, [f"file://{tmp_path}/a", f"file://{tmp_path}/none"]):
        assert "on rank 1, it cannot be read: " in text and "work_dir must be" in text


@pytest.mark.processes
def test_fewer_rows_than_ranks(tmp_path: Path) -> None:
    write(tmp_path, [2])
    assert all(
        "2 validation rows are too few for 3 ranks" in text for text in ranks.run(3, refused, [f"file://{tmp_path}"])
    )


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([1.0, None], "column x has nulls"),
        ([[1.0, None], [2.0, 3.0]], "column x has nulls"),
        ([[1.0], None], "column x has nulls"),
        ([[1.0], [2.0, 3.0]], "column x has lists of 1 and of 2 numbers"),
        (["text"], "column x has string; DDL reads numbers"),
    ],
)
def test_what_is_no_number_is_refused(values: List[Any], match: str) -> None:
    from ddl.spark.shares import as_arrays

    with pytest.raises(ddl.InvalidArgument, match=match):
        as_arrays(pyarrow.table({"x": values}), ["x"])


def test_lists_of_lists_and_types() -> None:
    from ddl.spark.shares import as_arrays

    columns = {
        "a": [[[1, 2], [3, 4], [5, 6]]] * 4,
        "b": [True, False, True, True],
        "c": pyarrow.array([1, 2, 3, 4], "int8"),
    }
    arrays = as_arrays(pyarrow.table(columns).slice(1, 2), ["a", "b", "c"])
    assert arrays["a"].shape == (2, 3, 2) and arrays["a"].dtype == np.int64 and arrays["a"][1, 2, 1] == 6
    assert arrays["b"].tolist() == [False, True] and arrays["c"].dtype == np.int8
