"""``hvd.elastic`` for PyTorch: a state of models, optimizers and samplers, and a sampler that remembers what was used.

``run`` is in ddl/adapter/elastic.py, which knows no framework.
"""

from __future__ import annotations

from ddl.adapter.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from ddl_torch.elastic.sampler import ElasticSampler
from ddl_torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState"]
__all__ += ["run"]
