"""``hvd.elastic`` for PyTorch: a state of models, optimizers and samplers, and a sampler that remembers what was used.

``run`` is in ddl/adapter/elastic.py, which knows no framework.
"""

from __future__ import annotations

from ddl.adapter.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from ddl.adapter.fence import fenced
from ddl_torch.elastic.batches import ElasticBatches
from ddl_torch.elastic.by_shards import TrainingByShards
from ddl_torch.elastic.replaying import replay
from ddl_torch.elastic.sampler import ElasticSampler
from ddl_torch.elastic.scaled_lr import ScaledLR
from ddl_torch.elastic.state import TorchState
from ddl_torch.elastic.training import Training

__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState"]
__all__ += ["ElasticBatches", "ScaledLR", "Training", "TrainingByShards", "fenced", "replay", "run"]
