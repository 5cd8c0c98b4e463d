"""Measuring which algorithm serves which size on this cluster, and bringing the table to all ranks. docs/tune.md.

What is tried and how is chosen among it is pure arithmetic in ``ddl.tuning``; here are clocks, files and the ranks.
"""
