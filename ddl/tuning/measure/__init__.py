"""Measures which algorithm is fastest at which size on this cluster, and brings the table to all ranks. docs/tune.md.

``ddl.tuning`` decides what to try and what to choose, without I/O. Here are the clocks, the files and the ranks.
"""
