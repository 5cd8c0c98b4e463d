"""What the core really sends, counted by the core itself, is what the design promises for each layout."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np
import pytest
import ranks

pytestmark = pytest.mark.processes

LINE = 64  # blocks begin on cache lines, so a block may differ by one from its even share


def sent_by_one_allreduce(count: int) -> Tuple[int, int]:
    import ddl

    world = ddl.world()
    x = np.arange(count, dtype=np.float32) % 61 + ddl.rank()
    before = world.traffic()
    world.allreduce_(x, op=ddl.Sum)
    after = world.traffic()
    expected = (np.arange(count, dtype=np.float32) % 61) * ddl.size() + sum(range(ddl.size()))
    assert np.array_equal(x, expected)
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.few(6)
@pytest.mark.parametrize("dimensions", [[4], [2, 2], [3, 2], [2, 3], [2, 2, 2]], ids=lambda d: "x".join(map(str, d)))
@pytest.mark.parametrize("count", [245760, 245767], ids=["divisible", "not divisible"])
def test_messages_and_bytes_of_the_multi_ring(dimensions: List[int], count: int):
    size = int(np.prod(dimensions))
    env = {"DDL_SHM": "0", "DDL_ALGORITHM": "multiring", "DDL_DIMENSIONS": "x".join(map(str, dimensions))}
    sent = ranks.run(size, sent_by_one_allreduce, count, env=env)
    nbytes = 4 * count
    for messages, payload in sent:
        assert messages == 2 * sum(p - 1 for p in dimensions)
        assert abs(payload - 2 * nbytes * (size - 1) / size) <= 2 * LINE * size * len(dimensions)
    if count * 4 % (LINE * size) == 0:
        assert {payload for _, payload in sent} == {2 * nbytes * (size - 1) // size}


def test_ranks_that_share_memory_send_nothing():
    assert ranks.run(3, sent_by_one_allreduce, 245767) == [(0, 0)] * 3


def test_a_host_sends_only_its_share_to_the_others():
    """Two hosts of two ranks: inside a host nothing is sent; outside, each rank sends its half of the buffer."""
    sent = ranks.run(4, sent_by_one_allreduce, 245760, env_of=lambda rank: {"DDL_HOST_ID": f"host {rank // 2}"})
    nbytes = 4 * 245760
    assert sent == [(2, nbytes // 2)] * 4
