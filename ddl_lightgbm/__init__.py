"""DDL for LightGBM: its distributed training over the ranks of a job, without its sockets and its list of machines.

>>> ddl_lightgbm.init()
>>> booster = ddl_lightgbm.train(parameters, lightgbm.Dataset(x, y))  # this rank's rows; the same model on all ranks
"""

from __future__ import annotations

try:
    import lightgbm  # noqa: F401 (first of all, to say what is missing)
except ModuleNotFoundError as error:
    if error.name != "lightgbm":
        raise
    text = "ddl_lightgbm needs LightGBM: pip install lightgbm (docs/lightgbm.md)"
    raise ModuleNotFoundError(text, name=error.name) from None

from ddl import init, local_rank, local_size, rank, shutdown, size
from ddl_lightgbm.network import network
from ddl_lightgbm.training import average_metrics, train

__all__ = ["init", "shutdown", "rank", "size", "local_rank", "local_size", "average_metrics", "network", "train"]
