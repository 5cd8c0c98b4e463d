"""Metrics are averaged by weight, alike on all ranks; what does not fit together is refused on all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import ranks

torch = pytest.importorskip("torch")


def averages():
    import ddl_torch as ddl

    rank, size = ddl.rank(), ddl.size()
    everyone = range(size)
    assert ddl.average_metrics({"rank": rank, "one": torch.tensor([1])}) == {"rank": (size - 1) / 2, "one": 1.0}

    # In any order, by weight, of any type of number; a rank without samples has no say.
    weights = [r for r in everyone]
    values = {"loss": torch.tensor(2.0**rank, dtype=torch.bfloat16, requires_grad=True), "share": np.float32(rank / 4)}
    values["nan"] = math.nan if rank == 0 else True
    order = sorted(values, reverse=bool(rank % 2))
    mean = ddl.average_metrics({name: values[name] for name in order}, weight=torch.tensor(weights[rank]))
    assert list(mean) == order and all(type(value) is float for value in mean.values())
    assert mean["loss"] == sum(r * 2**r for r in everyone) / sum(weights)
    assert mean["share"] == sum(r * r / 4 for r in everyone) / sum(weights)
    assert mean["nan"] == 1.0

    noise = ddl.average_metrics({"x": 1 / (3 + rank), "big": 1e300, "inf": math.inf}, weight=0.1 + rank)
    assert noise["x"] == pytest.approx(np.average([1 / (3 + r) for r in everyone], weights=[0.1 + r for r in everyone]))
    assert noise["big"] == pytest.approx(1e300) and noise["inf"] == math.inf
    assert ddl.average_metrics({}) == {}
    half = ddl.split(rank % 2)
    assert ddl.average_metrics({"rank": rank}, communicator=half)["rank"] == np.mean(
        [r for r in everyone if r % 2 == rank % 2]
    )

    average = ddl.MetricAverage("loss", "accuracy")
    for _ in range(2):
        for batch in range(rank):  # rank 0 has none
            average.update({"loss": batch, "accuracy": torch.tensor(0.5)}, weight=batch + 1)
        expected = [b for r in everyone for b in range(r) for _ in range(b + 1)]
        assert average.compute() == {"loss": pytest.approx(np.mean(expected)), "accuracy": 0.5}
        average.reset()
    return noise


def mistakes():
    import ddl_torch as ddl

    rank, size = ddl.rank(), ddl.size()
    last = size - 1
    is_last = rank == last
    calls = [
        (
            lambda: ddl.average_metrics({"loss": 1, **({"top5": 1} if is_last else {})}),
            f"rank {last} has the metric 'top5', rank 0 ",
        ),
        (
            lambda: ddl.average_metrics({"loss": 1} if is_last else {"lost": 1}),
            f"rank 0 has the metric 'lost', rank {last} ",
        ),
        (
            lambda: ddl.average_metrics({"loss": torch.ones(3)} if is_last else {"loss": 1}),
            f"rank {last} 'loss' is a Tensor of shape",
        ),
        (lambda: ddl.average_metrics({"loss": 1}, weight=-1 if is_last else 1), f"rank {last} weight=-1 must be"),
        (lambda: ddl.average_metrics({"loss": "0.5"}), "rank 0 'loss' is a str, not one number"),
        (lambda: ddl.average_metrics({"loss": 1j}), "rank 0 'loss' is a complex"),
        (lambda: ddl.average_metrics({"loss": 1}, weight=math.nan), "rank 0 weight=nan"),
        (lambda: ddl.average_metrics({"loss": 1}, weight=0), "weights of all ranks are 0"),
        (lambda: ddl.MetricAverage("loss").compute(), "weights of all ranks are 0"),
    ]
    for call, message in calls:
        with pytest.raises(ddl.InvalidArgument, match=message):
            call()
    average = ddl.MetricAverage("loss")
    for metrics, weight, message in (
        ({"lost": 1}, 1, r"of \['loss'\] was given \['lost'\]"),
        ({"loss": None}, 1, "'loss' is a NoneType"),
        ({"loss": 1}, -1, "weight=-1"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=message):
            average.update(metrics, weight=weight)
    average.update({"loss": 3})
    assert average.compute() == {"loss": 3.0}  # and the communicator is unharmed


def run_all():
    results = averages()
    mistakes()
    return results


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3, 4])
def test_metrics_over_ranks(size):
    answers = ranks.run(size, run_all, env={"OMP_NUM_THREADS": "1"})
    assert all(answer == answers[0] for answer in answers)


def alone():
    import ddl_torch as ddl

    assert ddl.average_metrics({"loss": 0.1}, weight=3) == {"loss": pytest.approx(0.1)}
    with pytest.raises(ddl.InvalidArgument, match="'loss' is a list"):
        ddl.average_metrics({"loss": [1]})


@pytest.mark.processes
def test_one_rank_alone():
    ranks.run(1, alone)
