"""The fake device of torch computes what the CPU does, as late as a GPU, and under the fake driver's ledger.

No test here is about DDL: they prove the tool with which others prove what it does with torch's streams.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Callable, Dict, Iterator, List

import pytest
import ranks

pytest.importorskip("torch")

import torch  # noqa: E402
from device.fake_cuda import Fake  # noqa: E402
from device.fake_torch import (  # noqa: E402
    install,
    library,
    memory_scenes,
    order_scenes,
    training_scenes,
    value_scenes,
)
from device.fake_torch.scenes import play  # noqa: E402
from device.jobs import gpu, total  # noqa: E402

import ddl  # noqa: E402

pytestmark = pytest.mark.slow  # the fake device of torch is compiled first


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """Give a process that plays scenes; the library is compiled before the first of them."""
    library()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


SCENES = [*value_scenes.SCENES, *order_scenes.SCENES, *memory_scenes.SCENES, *training_scenes.SCENES]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_fake_torch(process: ProcessPoolExecutor, scene: Callable[[Fake], None]) -> None:
    process.submit(play, scene).result(timeout=120)


class TensorInterface:
    """A tensor's memory, as an array on a GPU that its thread's current stream produces."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        return {
            "shape": tuple(self.tensor.shape),
            "typestr": "<f4",
            "data": (self.tensor.data_ptr(), False),
            "strides": None,
            "version": 3,
            "stream": torch.fake.current_stream().cuda_stream or 1,
        }


def sums_of_tensors() -> List[float]:
    """A rank of a job: torch and DDL's core use one driver, and DDL orders itself behind torch's stream."""
    with gpu():
        device = install()
        with device.stream(device.Stream()):
            x = torch.full((100_000,), float(ddl.rank() + 1), device="fake")
            ddl.allreduce_(TensorInterface(x), op="sum")
            y = x * 2
            return y[[0, -1]].tolist()


def a_tensor_that_nobody_waited_for() -> bool:
    """A rank that writes to a tensor while DDL does; whether the ledger has objected."""
    fake = Fake(reset=False)
    install()
    x = torch.full((100_000,), 1.0, device="fake")
    work = ddl.allreduce_async_(TensorInterface(x), op="sum")
    x.add_(1)
    work.wait()
    torch.fake.synchronize()
    ddl.shutdown()
    return fake.violations != []


@pytest.mark.processes
def test_a_job_uses_one_driver_for_torch_and_ddl() -> None:
    assert ranks.run(2, sums_of_tensors, env=Fake.environment()) == [[2.0 * total(2)] * 2] * 2


@pytest.mark.processes
def test_the_ledger_objects_to_a_tensor_that_torch_and_ddl_write_at_a_time() -> None:
    assert ranks.run(2, a_tensor_that_nobody_waited_for, env=Fake.environment()) == [True, True]
