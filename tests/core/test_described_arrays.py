"""Arrays that DLPack does not tell well, or not at all: whoever knows their type tells the core, once."""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np
import pytest

import ddl
from ddl.adapter.arrays import describe_arrays_of

pytestmark = pytest.mark.processes


class Described:
    """An array on a device for which DLPack has no number."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> Any:
        raise ValueError("no such device")

    def __dlpack__(self, **options: Any) -> Any:
        raise ValueError("nothing is given out")


class GivesNothing(Described):
    """It has a number, and is not given out."""

    def __dlpack_device__(self) -> Any:
        return 1, 0


describe_arrays_of(Described, lambda described: described.array)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    ddl.init()
    yield
    ddl.shutdown()


@pytest.mark.parametrize("kind", [Described, GivesNothing])
def test_what_is_told_is_used(kind: Any) -> None:
    x = kind(np.array([200, 100], np.uint8))
    assert ddl.allreduce_(x) is x and x.array.tolist() == [200, 100]
    assert ddl.broadcast_(x) is x
    step = ddl.prepare_allreduce(kind(np.array([1 + 2j])), op="sum")
    assert step().array.tolist() == [1 + 2j]
    with pytest.raises(ddl.InvalidArgument, match="op=ddl.Min is not defined for them"):
        ddl.allreduce_(kind(np.array([1j])), op="min")


@pytest.mark.parametrize(("kind", "words"), [(Described, "no such device"), (GivesNothing, "nothing is given out")])
def test_where_nobody_knows_the_owner_says_why(kind: Any, words: str) -> None:
    with pytest.raises((ValueError, ddl.InvalidArgument), match=words):
        ddl.allreduce_(kind(None))
