"""``ddl bench``: measures DDL against what else one could pick, in one run. What is measured: docs/benchmarks.md."""
