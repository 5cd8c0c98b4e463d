"""Trains XGBoost on the UCI handwritten digits, on one rank or many.

    python examples/xgboost_digits.py
    ddlrun -np 2 examples/xgboost_digits.py

The 1797 real digits (8 x 8 pixels) ship inside scikit-learn, so nothing is downloaded. Lines that a script for one
machine would not have are marked (DDL). Each rank has its own rows; all ranks get the same model.
"""

from __future__ import annotations

import argparse
import hashlib

import numpy as np
import xgboost as xgb
from sklearn.datasets import load_digits

import ddl_xgboost as ddl


def main() -> None:
    parser = argparse.ArgumentParser(description="Train XGBoost on handwritten digits, with DDL.")
    parser.add_argument("--rounds", type=int, default=20, help="boosting rounds (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of rows (%(default)s)")
    arguments = parser.parse_args()

    ddl.init()  # (DDL)
    x, y = load_digits(return_X_y=True)
    order = np.random.RandomState(arguments.seed).permutation(len(x))
    train, test = order[len(x) // 5 :], order[: len(x) // 5]
    train = train[ddl.rank() :: ddl.size()]  # (DDL) the rows of this rank

    params = {"objective": "multi:softmax", "num_class": 10, "max_depth": 5, "verbosity": 0}
    with ddl.network():  # (DDL)
        booster = xgb.train(params, xgb.DMatrix(x[train], y[train]), arguments.rounds)

    accuracy = np.mean(booster.predict(xgb.DMatrix(x[test])) == y[test])
    digest = hashlib.sha256(booster.save_raw("json")).hexdigest()[:12]
    print(f"rank {ddl.rank()} of {ddl.size()}: model {digest}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
