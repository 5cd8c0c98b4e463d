"""XGBoost's distributed training on DDL's ranks: the same model on all of them, and a lost rank is named."""

from __future__ import annotations

import os
import re
from typing import Any, List, Tuple

import numpy as np
import pytest
import ranks

xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed; make test-full installs it")

import ddl  # noqa: E402
import ddl_xgboost  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.slow]
PARAMETERS = {"nthread": 1, "max_depth": 4, "objective": "reg:squarederror", "verbosity": 0}


def data(rows: int = 1500) -> Tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(3)
    x = random.normal(size=(rows, 10))
    return x, 2 * x[:, 0] + np.sin(3 * x[:, 1]) + 0.1 * random.normal(size=rows)


def own_share() -> Any:
    x, y = data()
    return xgboost.DMatrix(x[ddl.rank() :: ddl.size()], y[ddl.rank() :: ddl.size()])


def training_twice() -> Tuple[bytes, bytes, int, float]:
    x, y = data()
    models = []
    for _ in range(2):
        with ddl_xgboost.network():
            number = xgboost.collective.get_rank()
            assert xgboost.collective.get_world_size() == ddl.size()
            booster = xgboost.train(PARAMETERS, own_share(), 10)
        assert not xgboost.collective.is_distributed()
        models.append(bytes(booster.save_raw("json")))
    return models[0], models[1], number, float(np.mean((booster.predict(xgboost.DMatrix(x)) - y) ** 2))


@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_have_the_same_model(size: int) -> None:
    x, y = data()
    alone = xgboost.train(PARAMETERS, xgboost.DMatrix(x, y), 10)
    error = float(np.mean((alone.predict(xgboost.DMatrix(x)) - y) ** 2))
    answers = ranks.run(size, training_twice)
    assert len({answer[:2] for answer in answers}) == 1 and answers[0][0] == answers[0][1]
    assert [answer[2] for answer in answers] == list(range(size))
    assert answers[0][3] == pytest.approx(error, rel=0.1)  # bins are those of sketches that ranks have merged


def dying() -> List[str]:
    class Die(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if epoch == 2 and ddl.rank() == 1:
                os._exit(3)
            return False

    texts = []
    for callbacks in ([Die()], []):
        with pytest.raises(ddl.PeerLost) as caught, ddl_xgboost.network():
            xgboost.train(PARAMETERS, own_share(), 1000, callbacks=callbacks)
        texts.append(str(caught.value))
    assert not xgboost.collective.is_distributed()
    return texts


def test_a_rank_that_is_killed_is_named_by_the_others() -> None:
    answers = ranks.run(3, dying, may_die=[1])
    assert answers[1] == 3
    for texts in (answers[0], answers[2]):
        assert all(re.search(r"lost rank 1\b", text) for text in texts), texts


def mistaken() -> str:
    x, y = data()
    with pytest.raises(xgboost.core.XGBoostError) as caught, ddl_xgboost.network():
        labels = y[:-1] if ddl.rank() == 1 else y
        xgboost.train(PARAMETERS, xgboost.DMatrix(x, labels), 1000)
    assert ddl.allreduce(1.0, op=ddl.Sum) == 2
    return str(caught.value)


def test_a_mistake_of_one_rank_ends_the_training_of_all() -> None:
    """Nobody is lost: DDL's job goes on, and XGBoost's own errors are there."""
    first, second = ranks.run(2, mistaken)
    assert "label" in second and first


def alone() -> bool:
    with pytest.raises(ddl.InvalidState, match="init"), ddl_xgboost.network():
        pass
    ddl.init()
    with ddl_xgboost.network():
        xgboost.train(PARAMETERS, own_share(), 2)
        return bool(xgboost.collective.is_distributed())


def test_one_rank_is_plain_xgboost() -> None:
    assert ranks.run(1, alone, initialise=False) == [False]
