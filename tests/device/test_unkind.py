"""The same results on a slow GPU that is shared: copies take long, words are seen late, and others have their turns.

The options are control.cc's. How long things take is about what an H200 took for pieces of 2 MiB, with two processes.
"""

from __future__ import annotations

from typing import Any, Dict

import numpy as np
import pytest
import ranks
from device.fake_cuda import Fake
from device.jobs import array_of, gpu, total

import ddl

pytestmark = [pytest.mark.processes, pytest.mark.fake_driver("a real one cannot be made slow")]
UNKIND = {"slice_us": 2000, "word_us": 30, "down_bytes_per_s": 2 << 30, "up_bytes_per_s": 2 << 30}
COUNTS = [1, 3_000, 200_001, 1_500_000]


def many_calls() -> int:
    """Sums and copies of all sizes, one after the other and several at once; what is right is known exactly."""
    with gpu() as fake:
        rank, size = ddl.rank(), ddl.size()
        done = 0
        for count in COUNTS:
            ramp = np.arange(count, dtype=np.int32)
            x = array_of(fake, ramp + rank)
            ddl.allreduce_(x, op="sum")
            assert (x.numpy() == size * ramp + total(size) - size).all()
            arrays = [array_of(fake, ramp + rank + number) for number in range(4)]
            works: Any = [ddl.allreduce_async_(each, op="max") for each in arrays[:3]]
            works.append(ddl.broadcast_async_(arrays[3], size - 1))
            for work in works:
                work.wait()
            for number, each in enumerate(arrays):
                assert (each.numpy() == ramp + size - 1 + number).all(), (count, number)
            done += 1
        assert fake.live("full queues") == 0
        return done


def environment(wait: str, **more: Any) -> Dict[str, str]:
    return {**Fake.environment(options=UNKIND, **more), "DDL_GPU_WAIT": wait}


@pytest.mark.parametrize("queues", [8, 1])
@pytest.mark.parametrize("wait", ["host", "stream"])
def test_results_are_right(wait: str, queues: int) -> None:
    assert ranks.run(2, many_calls, env=environment(wait, queues=queues)) == [len(COUNTS)] * 2
