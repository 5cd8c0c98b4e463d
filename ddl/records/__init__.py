"""What a rank records of itself, read by anybody: the rank, another process of its host, ``ddlrun``, ``ddl dump``.

layout.py knows the bytes, memory.py finds them, even those of a process that is stopped. fr_trace.py has them in the
form of PyTorch's flight recorder. docs/record.md explains it.
"""
