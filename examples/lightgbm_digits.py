"""Trains LightGBM on the UCI handwritten digits, on one rank or many.

    python examples/lightgbm_digits.py
    ddlrun -np 2 examples/lightgbm_digits.py

The 1797 real digits (8 x 8 pixels) ship inside scikit-learn, so nothing is downloaded. Lines that a script for one
machine would not have are marked (DDL). Each rank has its own rows; all ranks get the same model.
"""

from __future__ import annotations

import argparse
import hashlib

import lightgbm as lgb
import numpy as np
from sklearn.datasets import load_digits

import ddl_lightgbm as ddl


def main() -> None:
    parser = argparse.ArgumentParser(description="Train LightGBM on handwritten digits, with DDL.")
    parser.add_argument("--rounds", type=int, default=40, help="boosting rounds (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of rows (%(default)s)")
    arguments = parser.parse_args()

    ddl.init()  # (DDL)
    x, y = load_digits(return_X_y=True)
    order = np.random.RandomState(arguments.seed).permutation(len(x))
    train, test = order[len(x) // 5 :], order[: len(x) // 5]
    train = train[ddl.rank() :: ddl.size()]  # (DDL) the rows of this rank

    params = {"objective": "multiclass", "num_class": 10, "num_leaves": 15, "verbosity": -1}
    data = lgb.Dataset(x[train], y[train])
    stopping = [lgb.early_stopping(5, verbose=False)]
    valid = [lgb.Dataset(x[test], y[test], reference=data)]
    booster = ddl.train(params, data, arguments.rounds, valid_sets=valid, callbacks=stopping)  # (DDL) was lgb.train

    accuracy = np.mean(booster.predict(x[test]).argmax(axis=1) == y[test])
    digest = hashlib.sha256(booster.model_to_string().encode()).hexdigest()[:12]
    print(f"rank {ddl.rank()} of {ddl.size()}: model {digest}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
