"""Lets a module of ChainerMN be imported that imports mpi4py, where mpi4py is not installed. It is not used.

``MultiNodeBatchNormalization`` asks every communicator whether it is a ``PureNcclCommunicator``, whose module looks
into ``mpi4py.MPI`` when it is imported. A stand-in exists during that one import, so that nothing later takes it for an
MPI: ChainerMN's own communicators still say that mpi4py is missing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from types import ModuleType
from typing import Dict

__all__ = ["import_without_mpi4py"]


def import_without_mpi4py() -> None:
    """Import that module, once; nothing is done where mpi4py is installed."""
    name = "chainermn.communicators.pure_nccl_communicator"
    if name in sys.modules or importlib.util.find_spec("mpi4py") is not None:
        return
    stand_in: Dict[str, ModuleType] = {key: ModuleType(key) for key in ("mpi4py", "mpi4py.MPI")}
    vars(stand_in["mpi4py"]).update(MPI=stand_in["mpi4py.MPI"])
    vars(stand_in["mpi4py.MPI"]).update(_typedict=defaultdict(lambda: None), ANY_TAG=-1, FLOAT=None)
    before = {key: sys.modules[key] for key in stand_in if key in sys.modules}
    sys.modules.update(stand_in)
    try:
        importlib.import_module(name)
    finally:
        for key in stand_in:
            del sys.modules[key]
        sys.modules.update(before)
