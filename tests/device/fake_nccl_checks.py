"""What the tests of the fake NCCL share: ranks without DDL, and the operation that most of them queue."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import numpy as np
import pytest
import ranks
from device.fake_cuda import Fake
from device.fake_nccl import Nccl, NcclError
from device.fake_nccl.jobs import communicator_of_all, each_its_gpu, rank_and_size

GARBAGE = 0xEE  #: what an operation writes that cannot do what it should


def run(size: int, function: Callable[..., Any], *args: Any, fake: Any = None, **options: Any) -> List[Any]:
    """Run a function on ranks that have a GPU each, and no DDL."""
    return ranks.run(size, function, *args, initialise=False, env_of=each_its_gpu(fake or {}, **options), timeout=100)


def opened() -> Tuple[Fake, Nccl, int, int]:
    """Return this rank's hands, its rank, and the number of ranks."""
    return (Fake(reset=False), Nccl(), *rank_and_size())


def fails(code: int, word: str, call: Callable[..., object], *arguments: Any, **options: Any) -> None:
    with pytest.raises(NcclError, match=word) as raised:
        call(*arguments, **options)
    assert raised.value.code == code


def started() -> Tuple[Fake, Nccl, int, int, int]:
    """Return the hands, a communicator, a stream, and 8 bytes of device memory."""
    fake, nccl, rank, _ = opened()
    communicator = communicator_of_all(nccl)
    pointer = fake.alloc(8)
    fake.poke(pointer, np.array([rank + 1, 7], np.int32).tobytes())
    return fake, nccl, communicator, fake.stream(), pointer


def add_up(nccl: Nccl, communicator: int, pointer: int, stream: int) -> None:
    nccl.all_reduce(communicator, pointer, pointer, 2, "int32", "sum", stream)


def value_at(fake: Fake, pointer: int) -> int:
    return int(np.frombuffer(fake.peek(pointer, 4), np.int32)[0])
