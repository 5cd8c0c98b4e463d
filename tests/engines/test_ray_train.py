"""Ray Train with ``DDLConfig`` and with torch's backend "ddl", and trials of Tune side by side; a real Ray."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

import local_ray
import numpy as np
import pytest

import ddl

pytest.importorskip("ray", reason="Ray is not installed (pip install 'ray[train,tune]==2.60.0')")
for needed in ("pandas", "pyarrow", "tensorboardX"):
    pytest.importorskip(needed, reason=f"{needed}, which Ray Train needs, is not installed")
pytestmark = [
    *(pytest.mark.slow, pytest.mark.processes),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own, when it reads its own defaults
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with local_ray.started(cpus=6) as ray:
        yield ray


def trains(config: Dict[str, Any]) -> Tuple[int, int, int]:
    """One value on each rank; a rank may be killed at the first attempt."""
    ddl.init()  # as in a script for Horovod; nothing happens
    total = int(ddl.allreduce(np.array([ddl.rank() + 1]), op=ddl.Sum).item())
    assert os.environ["OF_THE_USER"] == "1"
    mark = Path(config["folder"]) / "killed"
    if ddl.rank() == config.get("killed") and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    ddl.barrier()
    return total, ddl.size(), ddl.local_size()


def trainer(folder: Path, failures: int = 0, **config: Any) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from ddl.ray.train import DDLConfig

    return DataParallelTrainer(
        trains,
        train_loop_config={"folder": str(folder), **config},
        backend_config=DDLConfig(environ={"OF_THE_USER": "1"}),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder), failure_config=FailureConfig(max_failures=failures)),
    )


def test_workers_are_ranks(ray: Any, tmp_path: Path) -> None:
    assert trainer(tmp_path).fit().return_value == (3, 2, 2)


@pytest.mark.faults
def test_a_worker_that_is_killed_is_named(ray: Any, tmp_path: Path) -> None:
    from ray.train import TrainingFailedError

    with pytest.raises(TrainingFailedError) as caught:
        trainer(tmp_path, killed=1).fit()
    print(caught.value)
    assert "rank 1" in str(caught.value) and "PeerLost" in str(caught.value)


@pytest.mark.faults
def test_train_starts_all_anew(ray: Any, tmp_path: Path) -> None:
    assert trainer(tmp_path, failures=1, killed=0).fit().return_value == (3, 2, 2)
    assert (tmp_path / "killed").exists()


def averages() -> Any:
    import torch

    value = torch.full((3,), float(torch.distributed.get_rank() + 1))
    torch.distributed.all_reduce(value)
    return value.tolist(), torch.distributed.get_backend()


def test_torch_trainer(ray: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from ddl_torch.ray_train import TorchConfig

    trainer = TorchTrainer(
        averages,
        torch_config=TorchConfig(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    assert trainer.fit().return_value == ([3.0, 3.0, 3.0], "ddl")


def trial(config: Dict[str, Any]) -> Dict[str, Any]:
    """Two ranks of its own, which are there at the same time as those of the other trial."""
    from ddl.ray import RayExecutor

    executor = RayExecutor(RayExecutor.create_settings(120, 120), num_workers=2)
    executor.start()
    try:
        Path(config["folder"], str(config["value"])).touch()
        return {"total": executor.run(meets, (config,))[1]}
    finally:
        executor.shutdown()


def meets(config: Dict[str, Any]) -> int:
    import time

    while (
        len(list(Path(config["folder"]).iterdir())) < 2
    ):  # until both trials have their ranks; the test's limit ends it
        time.sleep(0.01)
    return int(ddl.allreduce(np.array([config["value"]]), op=ddl.Sum).item())


def test_trials_side_by_side(ray: Any, tmp_path: Path) -> None:
    from ray import tune

    (tmp_path / "begun").mkdir()
    space = {"value": tune.grid_search([10, 100]), "folder": str(tmp_path / "begun")}
    resources = tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}, {"CPU": 1}])
    tuner = tune.Tuner(
        tune.with_resources(trial, resources),
        param_space=space,
        run_config=tune.RunConfig(storage_path=str(tmp_path / "results")),
    )
    assert sorted(result.metrics["total"] for result in tuner.fit()) == [20, 200]
