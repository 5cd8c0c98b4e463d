"""Trains a network on a Spark DataFrame of handwritten digits, on ranks that are tasks of Spark, and tests it there.

    python examples/spark_digits.py
    spark-submit --master spark://host:7077 examples/spark_digits.py --ranks 4 --work-dir /mnt/shared

The 1797 real digits (8 x 8 pixels) ship inside scikit-learn, so nothing is downloaded. Without spark-submit, Spark runs
on this machine, with a core for each rank. Lines that are DDL's are marked (DDL).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers' Python needs DDL and torch, too

import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import array_max, array_position, col
from sklearn.datasets import load_digits

from ddl_torch.spark import TorchEstimator  # (DDL)


def digits(spark: SparkSession) -> DataFrame:
    images, labels = load_digits(return_X_y=True)
    rows = [((image / 16).tolist(), int(label)) for image, label in zip(images, labels)]
    return spark.createDataFrame(rows, "pixels array<double>, digit int")


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a network on a Spark DataFrame with DDL.")
    parser.add_argument("--ranks", type=int, default=2, help="tasks that train together (%(default)s)")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the training digits (%(default)s)")
    parser.add_argument("--work-dir", default=tempfile.gettempdir(), help="all hosts share it (%(default)s)")
    options = parser.parse_args()
    builder = SparkSession.builder.appName("digits")
    if "SPARK_ENV_LOADED" not in os.environ:  # spark-submit has not started us
        builder = builder.master(f"local[{options.ranks}]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    train, test = digits(spark).randomSplit([0.8, 0.2], seed=1)

    torch.manual_seed(1)
    model = network()
    estimator = TorchEstimator(  # (DDL)
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=4e-3),
        loss=torch.nn.CrossEntropyLoss(),
        feature_cols=["pixels"],
        input_shapes=[[-1, 1, 8, 8]],
        label_cols=["digit"],
        validation=0.1,
        batch_size=32,
        epochs=options.epochs,
        num_proc=options.ranks,
        work_dir=options.work_dir,
    )
    fitted = estimator.fit(train)

    scores = col("digit__output")
    best = (array_position(scores, array_max(scores)) - 1).cast("double")
    answers = fitted.transform(test).select(col("digit").cast("double").alias("label"), best.alias("prediction"))
    share = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(answers)
    losses = fitted.history["loss"]
    print(f"{options.ranks} ranks: training loss {losses[0]:.3f} to {losses[-1]:.3f}, test accuracy {share:.2%}")
    spark.stop()


if __name__ == "__main__":
    main()
