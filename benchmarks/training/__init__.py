"""``python -m benchmarks training``: a training step with DDL, with DistributedDataParallel, and without averaging."""
