"""LightGBM's distributed training over DDL: the same model on all ranks, and the one that its own sockets make."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from ports import unused_ports

lightgbm = pytest.importorskip("lightgbm", reason="LightGBM is not installed; make test-full installs it")

import ddl  # noqa: E402
import ddl_lightgbm  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.slow]

COMMON = {"verbosity": -1, "num_threads": 1, "num_leaves": 15, "min_data_in_leaf": 5, "deterministic": True}
OBJECTIVES: Dict[str, Dict[str, Any]] = {
    "regression": {"objective": "regression"},
    "l1": {"objective": "regression_l1"},
    "binary": {"objective": "binary", "bagging_fraction": 0.7, "bagging_freq": 1},
    "multiclass": {"objective": "multiclass", "num_class": 3, "feature_fraction": 0.8},
}


def data(objective: str, rows: int = 1200, columns: int = 12) -> Tuple[np.ndarray, np.ndarray]:
    """Return rows of all ranks, and their labels."""
    random = np.random.RandomState(3)
    x = random.normal(size=(rows, columns))
    value = 2 * x[:, 0] + np.sin(3 * x[:, 1]) * x[:, 2] + 0.1 * random.normal(size=rows)
    labels = {"regression": value, "l1": value, "binary": value > 0, "multiclass": np.digitize(value, [-1.0, 1.0])}
    return x, labels[objective].astype(float)


def own_share(x: np.ndarray, y: np.ndarray) -> Any:
    """Return the rows of this rank, not as many on each."""
    edges = [0, *(len(y) * (rank + 1) // ddl.size() - 7 * rank for rank in range(ddl.size() - 1)), len(y)]
    own = slice(edges[ddl.rank()], edges[ddl.rank() + 1])
    return lightgbm.Dataset(x[own], y[own])


def trees(booster: Any) -> str:
    """Return its text without the parameters behind it, which name machines."""
    return str(booster.model_to_string()).partition("\nparameters:")[0]


def train_both_ways(size: int, *arguments: Any) -> List[Tuple[str, str]]:
    """Run ``both_ways`` on ranks."""
    return ranks.run(size, both_ways, unused_ports(size), *arguments)


def both_ways(ports: List[int], parameters: Dict[str, Any], objective: str, shape: Any, rounds: int) -> Tuple[str, str]:
    """Train over DDL, and then over LightGBM's sockets."""
    x, y = data(objective, *shape)
    over_ddl = ddl_lightgbm.train(parameters, own_share(x, y), rounds)
    ranks.meet()
    own = {"machines": ",".join(f"127.0.0.1:{port}" for port in ports), "local_listen_port": ports[ddl.rank()]}
    own.update(num_machines=len(ports), pre_partition=True, time_out=2)
    with_sockets = {"tree_learner": "data", **parameters, **own}
    return trees(over_ddl), trees(lightgbm.train(with_sockets, own_share(x, y), rounds))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("learner", ["data", "voting"])
@pytest.mark.parametrize("size", [2, 3])
def test_the_model_is_that_of_lightgbms_own_sockets(size: int, learner: str, objective: str) -> None:
    parameters = {**COMMON, **OBJECTIVES[objective], "tree_learner": learner, "top_k": 4}
    answers = train_both_ways(size, parameters, objective, (), 8)
    if learner == "voting":
        assert all(by_ddl == by_sockets for by_ddl, by_sockets in answers)
        answers = [tuple(map(without_roots, pair)) for pair in answers]
    check(answers, trees=8 * (3 if objective == "multiclass" else 1))


def without_roots(text: str) -> str:
    """Return the text of a model without what is never used: by voting, a root has the mean of one rank's own rows."""
    return re.sub(r"^(tree_sizes|internal_value)=.*$", "", text, flags=re.MULTILINE)


def check(answers: List[Tuple[str, str]], trees: int) -> None:
    assert answers[0][0].count("Tree=") == trees
    assert {text for pair in answers for text in pair} == {answers[0][0]}


def by_features() -> str:
    with pytest.raises(lightgbm.basic.LightGBMError) as caught:
        ddl_lightgbm.train({**COMMON, "tree": "feature"}, lightgbm.Dataset(*data("regression")), 2)
    return str(caught.value)


def test_lightgbm_does_not_share_out_features_in_python() -> None:
    """Neither with its own sockets. So an alias of ``tree_learner`` is seen, too."""
    assert set(ranks.run(2, by_features)) == {"Do not support feature parallel in c api"}


@pytest.mark.parametrize(
    ("size", "columns", "rounds"),
    [(4, 12, 5), (5, 12, 5), (3, 3000, 1)],
    ids=["two halvings", "a pair and two halvings", "a ring, from 10 MiB on"],
)
def test_sums_are_added_in_the_order_of_the_sockets(size: int, columns: int, rounds: int) -> None:
    """Three numbers have more than one sum, so any other order would give other bits."""
    parameters = {**COMMON, "num_leaves": 4 if rounds == 1 else 15, "min_data_in_bin": 1}
    check(train_both_ways(size, parameters, "regression", (1200, columns), rounds), trees=rounds)


# --- metrics ---


def stopping_early() -> Tuple[int, Dict[str, Any], str]:
    x, y = data("regression", 900)
    rows = 300 + 100 * ddl.rank()
    noise = np.random.RandomState(ddl.rank()).normal(size=rows) * (1 + 20 * ddl.rank())
    x_test, y_test = x[:rows], (y[:rows] + noise).astype(np.float32)
    seen: Dict[str, Any] = {}
    stopping = [lightgbm.early_stopping(3, verbose=False), lightgbm.record_evaluation(seen)]
    booster = ddl_lightgbm.train(
        *({**COMMON, "objective": "regression", "metric": ["l2", "l1"]}, own_share(x, y), 60),
        valid_sets=[lightgbm.Dataset(x_test, y_test)],
        valid_names=["test"],
        callbacks=stopping,
    )
    predicted = booster.predict(x_test)  # by the best iteration, and by what is left of the booster
    total = ddl.allreduce(np.array([np.sum((predicted - y_test) ** 2), rows]), op=ddl.Sum)
    assert min(seen["test"]["l2"]) == pytest.approx(total[0] / total[1], rel=1e-6)
    return booster.best_iteration, seen, trees(booster)


def test_all_ranks_stop_at_the_same_round() -> None:
    """Metrics are averages over all rows of all ranks: by its own ones, each would stop at another round."""
    first, second = ranks.run(2, stopping_early)
    assert first == second and 0 < first[0] < 57, (first, second)


def estimators() -> Tuple[str, List[int]]:
    x, y = data("binary")
    share = own_share(x, y)
    with ddl_lightgbm.network() as parameters:
        callbacks = [ddl_lightgbm.average_metrics()]
        model = lightgbm.LGBMClassifier(**parameters, n_estimators=5, verbosity=-1, num_threads=1)
        model.fit(share.data, share.label, eval_set=[(share.data, share.label)], callbacks=callbacks)
    return trees(model.booster_), model.predict(x).astype(int).tolist()


def test_estimators_train_in_the_network() -> None:
    first, second = ranks.run(2, estimators)
    assert first == second
    assert np.mean(np.array(first[1]) == data("binary")[1]) > 0.8


# --- what goes wrong ---


def in_the_network() -> None:
    with ddl_lightgbm.network():
        lightgbm.Dataset(*data("regression")).construct()


def dying_while_it_trains() -> List[str]:
    x, y = data("regression")

    def die(environment: Any) -> None:
        if environment.iteration == 2 and ddl.rank() == 1:
            os._exit(3)

    with pytest.raises(ddl.PeerLost) as caught:
        ddl_lightgbm.train({**COMMON}, own_share(x, y), 2000, callbacks=[die])
    assert caught.value.__suppress_context__  # what LightGBM says of it would only hide it
    texts = [str(caught.value)]
    for again in (lambda: ddl_lightgbm.train({**COMMON}, own_share(x, y), 2), in_the_network):
        with pytest.raises(ddl.PeerLost) as caught:
            again()
        texts.append(str(caught.value))
    alone = lightgbm.train({**COMMON}, lightgbm.Dataset(x, y), 2)  # LightGBM itself is whole
    assert trees(alone).count("Tree=") == 2
    return texts


def test_a_rank_that_is_killed_is_named_by_the_others() -> None:
    answers = ranks.run(3, dying_while_it_trains, may_die=[1])
    assert answers[1] == 3
    for texts in (answers[0], answers[2]):
        assert all(re.search(r"lost rank 1\b", text) for text in texts), texts


def dying_before_it_bins() -> str:
    if ddl.rank() == 2:
        os._exit(3)
    with pytest.raises(ddl.PeerLost) as caught:
        in_the_network()
    return str(caught.value)


def test_a_rank_that_is_killed_before_data_are_binned() -> None:
    """Without an exception, LightGBM would read sizes that are not there."""
    answers = ranks.run(3, dying_before_it_bins, may_die=[2])
    assert all("lost rank 2" in text for text in answers[:2]), answers


def mistakes() -> List[str]:
    x, y = data("regression", 300)
    texts = []
    binned = lightgbm.Dataset(x, y).construct()
    for parameters, rows in [
        ({"num_leaves": 7 + ddl.rank()}, lightgbm.Dataset(x, y)),
        ({"workers": "127.0.0.1:1,127.0.0.1:2"}, lightgbm.Dataset(x, y)),
        ({}, binned if ddl.rank() == 1 else lightgbm.Dataset(x, y)),
    ]:
        with pytest.raises(ddl.InvalidArgument) as caught:
            ddl_lightgbm.train({**COMMON, **parameters}, rows, 1)
        texts.append(str(caught.value))
    with ddl_lightgbm.network() as own:  # these are binned together, and may be used as often as one likes
        rows = lightgbm.Dataset(x, y, params={**COMMON, **own}).construct()
        again = [trees(ddl_lightgbm.train({**COMMON}, rows, 1)) for _ in range(2)]
    assert again[0] == again[1] != ""
    assert lightgbm.basic._LIB.LGBM_NetworkFree() == 0
    return texts


def test_mistakes_are_refused_on_all_ranks() -> None:
    for texts in ranks.run(2, mistakes):
        assert re.search(r"\[rank \d/2 .*train: on rank 0 there is num_leaves=7; on rank 1 num_leaves=8", texts[0])
        assert "on rank 0, there is the parameter workers: DDL is the network" in texts[1]
        assert "on rank 1, train_set was constructed before" in texts[2]


def alone() -> str:
    with pytest.raises(ddl.InvalidState, match="init"), ddl_lightgbm.network():
        pass
    ddl.init()
    x, y = data("regression", 300)
    assert trees(ddl_lightgbm.train({**COMMON}, lightgbm.Dataset(x, y), 3)) == trees(
        lightgbm.train({**COMMON}, lightgbm.Dataset(x, y), 3)
    )
    with ddl_lightgbm.network() as parameters:
        return repr(parameters)


def test_one_rank_is_plain_lightgbm() -> None:
    assert ranks.run(1, alone, initialise=False) == ["{}"]


def failing_in_a_callback() -> str:
    x, y = data("regression", 300)

    def fail(environment: Any) -> None:
        raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        ddl_lightgbm.train({**COMMON}, lightgbm.Dataset(x, y), 2, callbacks=[fail])
    return trees(ddl_lightgbm.train({**COMMON}, lightgbm.Dataset(x, y), 2))


def test_errors_of_the_program_stay_as_they_are() -> None:
    first, second = ranks.run(2, failing_in_a_callback)
    assert first == second
