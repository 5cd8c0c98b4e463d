"""Elastic training in Theano: a state of shared variables. ``run`` and ``fenced`` are in ddl/adapter/.

States in general are in ddl/adapter/elastic.py, which knows no framework.
"""

from __future__ import annotations

from typing import Any, List, Optional

from ddl.adapter.elastic import Arrays, Handler, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from ddl.adapter.fence import fenced
from ddl.adapter.rank_prefix import naming_rank
from ddl_theano.host import read, tensors_of, write

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "TheanoState", "fenced", "run"]


class TheanoState(ObjectState):
    """The state of a training: shared variables, and plain data by any names, ``state.epoch += 1``.

    variables: as for ``broadcast_parameters``: the updates of a function have the parameters, and what the rule keeps.
    States of random generators are left out: they stay each rank's own, and are not set back. ``sync`` gives all ranks
    the variables of rank 0. Raises ``InvalidArgument`` for what ``broadcast_parameters`` refuses.

    >>> state = ddl_theano.elastic.TheanoState(updates, epoch=0, batch=0)
    """

    variables: List[Any]

    @naming_rank
    def __init__(self, variables: Any, **values: Any) -> None:
        super().__init__(variables=tensors_of(variables, "TheanoState"), **values)

    def handler(self, value: Any) -> Optional[Handler]:
        """Return how ``value`` is kept; None for plain data."""
        return _VARIABLES if value is self.variables else None


_VARIABLES = Arrays(read, write)
