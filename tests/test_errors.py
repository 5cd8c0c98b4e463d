"""Every error of DDL is in the tree of ddl/errors.py, and comes whole out of a pickle or a copy."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from ddl import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_survives_a_pickle_and_a_copy(name: str) -> None:
    error = errors.RankFailed(3, "what happened") if name == "RankFailed" else getattr(errors, name)("what happened")
    error.note = "added by somebody"
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is type(error) and str(twin) == "what happened" and twin.args == error.args
        assert vars(twin) == vars(error)


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_can_be_made_without_its_init(name: str) -> None:
    """As tblib does, by which Dask and others let exceptions travel between processes."""
    kind = getattr(errors, name)
    error = kind.__new__(kind, "what happened")
    assert type(error) is kind and str(error) == "what happened" and error.args == ("what happened",)


def test_the_tree_has_every_error() -> None:
    assert sorted(re.findall(r"^    [│├└─ ]*([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)) == errors.__all__
