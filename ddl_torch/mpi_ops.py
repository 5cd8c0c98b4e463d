"""Horovod's module of this name: what scripts import from ``horovod.torch.mpi_ops`` is here. No MPI is used."""

from __future__ import annotations

from ddl_torch import *
from ddl_torch import __all__ as __all__
