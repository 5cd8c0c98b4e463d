"""Training that goes on when ranks are lost or join: ``ddl.elastic.run``, for any framework. See docs/elastic.md.

An adapter has more: states that know the framework's models, and for PyTorch ``ddl_torch.elastic.Training``, which
repeats an interrupted step from memory.

>>> state = ddl.elastic.ObjectState(weights=weights, step=0)
>>> @ddl.elastic.run
... def train(state):
...     while state.step < 1000:
...         state.weights -= 0.1 * ddl.allreduce(gradient(state.weights))
...         state.step += 1
...         state.commit()
>>> train(state)
"""

from __future__ import annotations

from ddl.adapter.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from ddl.adapter.fence import fenced

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "fenced", "run"]
