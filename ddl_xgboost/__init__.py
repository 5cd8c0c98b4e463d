"""DDL for XGBoost: its distributed training on the ranks of a job, whichever launcher has started them.

>>> ddl_xgboost.init()
>>> with ddl_xgboost.network():
...     booster = xgboost.train(parameters, xgboost.DMatrix(x, y))  # this rank's rows; the same model on all ranks
"""

from __future__ import annotations

try:
    import xgboost  # noqa: F401 (first of all, to say what is missing)
except ModuleNotFoundError as error:
    if error.name != "xgboost":
        raise
    text = "ddl_xgboost needs XGBoost: pip install xgboost-cpu (docs/xgboost.md)"
    raise ModuleNotFoundError(text, name=error.name) from None

from ddl import init, local_rank, local_size, rank, shutdown, size
from ddl_xgboost.tracking import network

__all__ = ["init", "shutdown", "rank", "size", "local_rank", "local_size", "network"]
