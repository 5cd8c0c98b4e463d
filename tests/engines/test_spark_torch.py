"""torch on a real Spark: ``TorchEstimator``, and Spark's own TorchDistributor with the backend "ddl"."""

from __future__ import annotations

import copy
import dataclasses
import time
from pathlib import Path
from typing import Any, Iterator, List

import local_spark
import numpy as np
import pytest

import ddl
import ddl.spark

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("pyspark", reason="Spark is not installed (pip install pyspark)")
written = pytest.importorskip("ddl.spark.shares", reason="pyarrow is not installed (pip install pyarrow)").written

# Java starts within minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900), local_spark.warns_of_pandas]
#: It leaves the pipe of torchrun's output open.
leaves_a_pipe = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with local_spark.session("local[2]", tmp_path_factory.mktemp("spark")) as session:
        local_spark.pickle_by_value(__name__)
        yield session


def rows(count: int) -> List[Any]:
    """Two features and a third in a list; the label is a sum of them. Numbers that float32 holds exactly."""
    generator = np.random.default_rng(1)
    x = generator.integers(-8, 8, (count, 4)) / 8
    y = x @ np.array([1.0, -2.0, 0.5, 3.0]) + 1
    return [(float(a), [float(b), float(c), float(d)], float(label)) for (a, b, c, d), label in zip(x, y)]


def frame(spark: Any, count: int) -> Any:
    return spark.createDataFrame(rows(count), "first double, others array<double>, y double").repartition(3)


def network() -> Any:
    class TwoInputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.others = torch.nn.Linear(1, 1), torch.nn.Linear(3, 1)

        def forward(self, first: Any, others: Any) -> Any:
            return self.first(first) + self.others(others)

    torch.manual_seed(3)
    return TwoInputs()


def squares(output: Any, label: Any) -> Any:
    return ((output[:, 0] - label) ** 2).mean()


def estimator(folder: Path, model: Any, **other: Any) -> Any:
    from ddl_torch.spark import TorchEstimator

    settings = dict(feature_cols=["first", "others"], label_cols=["y"], num_proc=2, work_dir=str(folder), verbose=0)
    settings.update({"input_shapes": [[-1, 1], [-1, 3]], "loss": squares, **other})
    return TorchEstimator(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **settings)


def test_an_estimator_takes_the_steps_of_one_process(spark: Any, tmp_path: Path) -> None:
    """With all rows in one batch, whose order does not matter."""
    model, df = network(), frame(spark, 60)
    before = copy.deepcopy(model.state_dict())
    fitted = estimator(tmp_path, model, batch_size=30, epochs=8).fit(df)
    assert not list(tmp_path.iterdir())  # the Parquet files are gone
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())

    data = rows(60)
    first, others, y = (torch.tensor([row[column] for row in data]) for column in range(3))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(8):
        optimizer.zero_grad()
        loss = squares(model(first[:, None], others), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert fitted.history["loss"] == pytest.approx(losses, rel=1e-5)
    for name, value in model.state_dict().items():
        assert torch.allclose(fitted.getModel().state_dict()[name], value, rtol=1e-5, atol=1e-6)

    expected = [row.y for row in df.collect()], [row.others for row in df.collect()]
    shown = fitted.transform(df).collect()
    assert ([row.y for row in shown], [row.others for row in shown]) == expected
    assert shown[0].asDict().keys() == {"first", "others", "y", "y__output"}
    inputs = [torch.tensor([row[name] for row in shown]) for name in ("first", "others")]
    outputs = model(inputs[0][:, None], inputs[1]).detach()[:, 0]
    assert [row.y__output for row in shown] == pytest.approx(outputs.tolist(), abs=1e-5)


def test_rows_that_do_not_divide_vectors_and_validation(spark: Any, tmp_path: Path) -> None:
    """41 rows for two ranks, in batches of 8; a vector of Spark's ML, one model with ten outputs, a pipeline."""
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import VectorAssembler

    from ddl_torch.spark import TorchEstimator

    df = frame(spark, 50).selectExpr("first", "others[0] as second", "cast(y > 1 as int) as above")
    df = df.selectExpr("*", "monotonically_increasing_id() % 5 = 0 as held_out")
    model = torch.nn.Sequential(torch.nn.Linear(2, 10), torch.nn.Tanh(), torch.nn.Linear(10, 2))
    training = TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.05),
        loss=torch.nn.CrossEntropyLoss(),
        feature_cols=["point"],
        label_cols=["above"],
        validation="held_out",
        batch_size=8,
        epochs=6,
        num_proc=2,
        work_dir=f"file://{tmp_path}",
    )
    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["first", "second"], outputCol="point"), training])
    fitted = pipeline.fit(df)
    history = fitted.stages[1].history
    assert len(history["loss"]) == len(history["val_loss"]) == 6
    assert history["loss"][-1] < history["loss"][0] and history["val_loss"][-1] < history["val_loss"][0]
    shown = fitted.transform(df).collect()
    assert len(shown) == 50 and all(len(row.above__output) == 2 for row in shown)
    assert list(shown[0].point) == [shown[0].first, shown[0].second]  # still a vector


def weights_of_all(training: Any, model: Any, *others: Any) -> Any:
    from ddl_torch.spark import _train

    assert (_train(training, model, *others) is None) == (ddl.rank() != 0)
    return {name: value.tolist() for name, value in model.state_dict().items()}


def test_all_ranks_come_to_the_same_weights(spark: Any, tmp_path: Path) -> None:
    training = estimator(tmp_path, network(), batch_size=4, epochs=3)
    _, arguments = training._training()
    with written(training._frames(frame(spark, 41)), str(tmp_path)) as places:
        plan = dataclasses.replace(training.plan, places=places)
        first, second = ddl.spark.run(weights_of_all, (plan, *arguments), num_proc=2)
    assert first == second
    assert first != {name: value.tolist() for name, value in network().state_dict().items()}


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"feature_cols": ["first", "otters"]}, "no column 'otters'; it has first, others, y, name"),
        ({"label_cols": ["z"]}, "no column 'z'"),
        ({"feature_cols": ["first", "name"]}, "column 'name' has string; DDL reads numbers"),
        ({"validation": "held_out"}, "no column 'held_out'"),
        ({"work_dir": "nowhere://x"}, "work_dir='nowhere://x': pyarrow has no way"),
    ],
)
def test_columns_are_looked_for_before_spark_starts(spark: Any, wrong: Any, match: str, tmp_path: Path) -> None:
    df = frame(spark, 4).selectExpr("*", "'x' as name")
    with pytest.raises(ddl.InvalidArgument, match=match):
        estimator(tmp_path, network(), **wrong).fit(df)
    assert not list(tmp_path.iterdir())


@pytest.mark.faults
@pytest.mark.parametrize(
    ("rows_there", "wrong", "match"),
    [
        (1, {}, "1 training rows are too few for 2 ranks"),
        (20, {"validation": "held_out"}, "0 validation rows are too few for 2 ranks"),
        (
            20,
            {"input_shapes": [[-1, 1], [-1, 2]]},
            r"column others has rows of shape \[3\], and .* says \[-1, 2\] for it",
        ),
    ],
)
def test_what_only_the_rows_tell(spark: Any, rows_there: int, wrong: Any, match: str, tmp_path: Path) -> None:
    """In a folder whose name has a space; the column says of no row that it is held out, not even that it is not."""
    folder = tmp_path / "my files"
    folder.mkdir()
    df = frame(spark, rows_there).selectExpr("*", "cast(null as boolean) as held_out")
    with pytest.raises(ddl.RankFailed, match=match):
        estimator(folder, network(), **wrong).fit(df)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"feature_cols": "first"}, "feature_cols='first'; name the columns in a list"),
        ({"input_shapes": [[-1]]}, "1 input_shapes for 2 feature_cols"),
        ({"batch_size": 0}, "batch_size=0, epochs=1"),
        ({"validation": 1.5}, "validation=1.5; a share"),
    ],
)
def test_parameters_that_make_no_sense(wrong: Any, match: str, tmp_path: Path) -> None:
    from ddl_torch.spark import TorchEstimator

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = dict(feature_cols=["first", "others"], label_cols=["y"], work_dir=str(tmp_path), loss=squares)
    with pytest.raises(ddl.InvalidArgument, match=f"TorchEstimator: {match}"):
        TorchEstimator(model=model, optimizer=optimizer, **{**settings, **wrong})


# --- Spark's own distributor ---


def averages(killed: bool) -> List[float]:
    import os
    import signal

    import torch
    import torch.distributed as dist

    import ddl_torch  # noqa: F401

    dist.init_process_group("ddl")
    value = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(value)
    if killed and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(value)
    seen = [dist.get_backend(), value.item(), os.environ["WORLD_SIZE"]]
    dist.destroy_process_group()
    return seen


@leaves_a_pipe
@pytest.mark.parametrize("local_mode", [True, False])
def test_sparks_distributor_with_our_backend(spark: Any, local_mode: bool) -> None:
    from pyspark.ml.torch.distributor import TorchDistributor

    distributor = TorchDistributor(num_processes=2, local_mode=local_mode, use_gpu=False)
    assert distributor.run(averages, False) == ["ddl", 2.0, "2"]


@leaves_a_pipe
@pytest.mark.faults
@pytest.mark.parametrize("local_mode", [True, False])
def test_a_process_of_the_distributor_that_is_killed(
    spark: Any, local_mode: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    from pyspark.ml.torch.distributor import TorchDistributor

    with pytest.raises(Exception, match="TorchDistributor failed during training"):
        TorchDistributor(num_processes=2, local_mode=local_mode, use_gpu=False).run(averages, True)
    shown, deadline = "", time.monotonic() + 120
    while "lost rank 1" not in shown and time.monotonic() < deadline:  # output of tasks comes over a connection
        shown += "".join(capfd.readouterr())
        time.sleep(0.05)
    assert "PeerLost: [rank 0/2" in shown and "lost rank 1" in shown
