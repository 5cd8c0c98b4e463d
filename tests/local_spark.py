"""A real Spark on this machine, for the tests of a module: executors and workers are processes of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, Iterator
from unittest import mock

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Spark 4.3 says that it does not fully support pandas 3, whatever it is that it needs pandas for.
warns_of_pandas = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def need_java() -> None:
    """Skip the test where Spark would find no Java."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        pytest.skip("Spark needs a Java (apt-get install openjdk-17-jre-headless)")


@contextlib.contextmanager
def session(master: str, folder: Path, **settings: str) -> Iterator[Any]:
    """Begin a session; end it, and Spark's processes, after the block. Skips where Spark or Java is not installed."""
    pytest.importorskip("pyspark", reason="Spark is not installed (pip install pyspark)")
    need_java()
    import pyspark
    from pyspark import SparkContext

    variables = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",  # the machine's name may not resolve
        "SPARK_LOCAL_DIRS": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with mock.patch.dict(os.environ, variables):
        spark = _begun(master, folder, settings)
        application = spark.sparkContext.applicationId
        try:
            yield spark
        finally:
            spark.stop()
            gateway = SparkContext._gateway
            SparkContext._gateway = SparkContext._jvm = None  # the next module's settings need a Java of their own
            gateway.shutdown()
            gateway.proc.stdin.close()  # Java ends when this is closed
            gateway.proc.wait(timeout=120)
            work = Path(pyspark.__file__).parent / "work"  # where executors of local-cluster run
            shutil.rmtree(work / application, ignore_errors=True)
            with contextlib.suppress(OSError):  # it is not there, or not empty
                work.rmdir()


def _begun(master: str, folder: Path, settings: Dict[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("tests of DDL")
    own = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }
    for name, value in {**own, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def pickle_by_value(module: str) -> None:
    """Let Spark send the functions of a module of tests themselves: its workers cannot import that."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[module])
