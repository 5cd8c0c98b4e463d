"""How many tasks Spark can run at the same time, as far as its configuration tells.

A barrier stage needs a slot for each task. Spark itself looks for ten minutes before it says that there are too few
(SPARK-24819), as executors may still come. What can never be is refused here, at once.
"""

from __future__ import annotations

import os
import re
from typing import Any, Optional

from ddl.errors import ConfigError, InvalidArgument

__all__ = ["check_slots"]

_LOCAL = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,.*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]")


def check_slots(context: Any, ranks: int) -> None:
    """Raise ``InvalidArgument`` if so many tasks can never run at once, ``ConfigError`` for dynamic allocation."""
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true" and not _LOCAL.fullmatch(context.master):
        raise ConfigError(
            "ddl.spark.run: spark.dynamicAllocation.enabled=true: Spark starts no barrier stage then, in which all "
            "tasks start at the same time (SPARK-24942); set it to false, and say how many executors there are "
            "(spark.executor.instances)"
        )
    most = _most_slots(conf, context.master)
    if most is not None and most < ranks:
        raise InvalidArgument(
            f"ddl.spark.run: num_proc={ranks}, but Spark runs at most {most} tasks at the same time (master "
            f"{context.master}, spark.task.cpus={conf.get('spark.task.cpus', '1')}), and all ranks start together "
            "(SPARK-24819); ask for fewer ranks, or give Spark more cores or executors"
        )


def _most_slots(conf: Any, master: str) -> Optional[int]:
    """Return how many slots there can be; None if the configuration does not tell."""
    cores_of_a_task = int(conf.get("spark.task.cpus", "1"))
    local, cluster = _LOCAL.fullmatch(master), _LOCAL_CLUSTER.fullmatch(master)
    if local:
        cores = os.cpu_count() if local[1] == "*" else int(local[1] or 1)
        return cores // cores_of_a_task if cores else None
    if cluster:
        return int(cluster[1]) * (int(cluster[2]) // cores_of_a_task)
    executors, cores_of_each = conf.get("spark.executor.instances"), conf.get("spark.executor.cores")
    return int(executors) * (int(cores_of_each) // cores_of_a_task) if executors and cores_of_each else None
