"""DDL for Chainer and ChainerMN: averages gradients over the ranks of a job, without MPI.

A script of ChainerMN's changes the line that makes its communicator; one without ChainerMN adds two:

>>> comm = ddl_chainer.create_communicator("ddl")

>>> ddl_chainer.broadcast_parameters(model)
>>> optimizer.add_hook(ddl_chainer.AverageGradients())
"""

from __future__ import annotations

try:
    import chainermn  # noqa: F401 (first of all, to say what is missing)
except ModuleNotFoundError as error:
    if error.name not in ("chainer", "chainermn"):
        raise
    text = "ddl_chainer needs Chainer 7, which has ChainerMN in it; docs/chainer.md says how to install it"
    raise ModuleNotFoundError(text, name=error.name) from None

from ddl_chainer import elastic
from ddl_chainer.communicator import DDLCommunicator, create_communicator
from ddl_chainer.model import AverageGradients, broadcast_parameters

__all__ = ["AverageGradients", "DDLCommunicator", "broadcast_parameters", "create_communicator", "elastic"]
