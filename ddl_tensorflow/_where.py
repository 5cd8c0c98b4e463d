"""On which ranks an op runs: negotiated on a process set, since ranks run the ops of a graph in any order."""

from __future__ import annotations

from typing import Optional

from ddl import operations
from ddl.process_sets import ProcessSet, ProcessSets
from ddl_tensorflow._operations import absent

__all__ = ["Where", "global_process_set", "process_sets"]

process_sets = ProcessSets(absent)
global_process_set = process_sets.everybody


class Where(operations.Where):
    """The ranks of ``process_set``; None: all."""

    def __init__(self, process_set: Optional[ProcessSet] = None) -> None:
        super().__init__(process_sets, process_set)
