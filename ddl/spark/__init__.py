"""DDL on Apache Spark, by Horovod's names: ``ddl.spark.run`` calls a function on ranks that are tasks of Spark.

The ranks are the tasks of one barrier stage: all start or none, and one that fails ends the others. The driver keeps
the job's store, so it knows which rank was the cause. See docs/spark.md.

``ddl.spark.estimator`` is what ``ddl_torch.spark`` and ``ddl_tensorflow.keras.spark`` share.
"""

from __future__ import annotations

from ddl.spark.runner import run, run_elastic

__all__ = ["run", "run_elastic"]
