"""The rails of one generation after the other, and what is still said of those of an older one."""

from __future__ import annotations

from typing import Any, List

import pytest
import ranks
from core.jobs import connected

import ddl

pytestmark = pytest.mark.processes


def ends() -> List[Any]:
    job: Any = ddl.world().job
    known = [job._rail_ends(1 - ddl.rank(), rail) for rail in range(4)]
    there, job.rails = job.rails, ("#0",)  # as if a member of the next generation had no more
    assert job.address(1 - ddl.rank(), 2, there)[0] == "127.0.0.3"  # for connections that the older one still makes
    known += [job._rail_ends(1 - ddl.rank(), rail) for rail in (0, 1)]
    del job.peers[1 - ddl.rank()]
    return [*known, job._rail_ends(1 - ddl.rank(), 0)]


def test_rails_that_are_no_more_have_no_name() -> None:
    for rank, said in enumerate(ranks.run(2, ends, **connected("rails"))):
        three = [f"127.0.0.{number}" for number in (1, 2, 3)]
        assert [tuple(entry[1:]) if entry else None for entry in said] == [
            *((address, address) for address in three),
            None,
            (three[0], three[0]),
            None,
            None,
        ]
        assert said[0][0].startswith(f"rank {1 - rank} (host ")
