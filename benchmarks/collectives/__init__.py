"""Times one collective of DDL and of its peers, in one run: ``python -m benchmarks allreduce`` and its siblings."""
