"""``Rebalance``: in large all-reduces, others do the work of ranks that are always late (``ddlrun --rebalance``).

The job's store finds who comes late (ddl/store/pace.py), and the ranks hear of it at different moments. But all must
use new plans from the same operation on. So rank 0 broadcasts now and then which ranks it knows to be late, and all act
on that. Both happen at *milestones*: between two collectives that have the same numbers on all ranks. The ranks go on
while the broadcast is under way. They wait for it only after ``_SLACK`` further collectives, when it has usually
arrived.
"""

from __future__ import annotations

import logging
from typing import Callable, Iterable, Optional, Tuple

import numpy as np

from ddl import _core, clock
from ddl.plan.ir import Collective
from ddl.text.rank_names import name_ranks
from ddl.topology import Topology

__all__ = ["FEWEST", "Rebalance"]

log = logging.getLogger("ddl")

FEWEST = 5  #: ranks that must be in time; fewer do not gain by it (benchmarks/results/stragglers.txt)
_SECONDS = 2.0  # between two words of rank 0, about
_SOONEST, _LATEST = 32, 1 << 20  # collectives between them
_GROWTH = 8  # so many times as many as before, at most
_SLACK = 32  # collectives


class Rebalance:
    """The late ranks of one communicator of ``size`` ranks, of which this one is ``rank``.

    ``late`` returns whom this rank knows to be late now. ``use`` has large all-reduces planned with other late ranks
    from now on.
    """

    def __init__(
        self,
        core: _core.Communicator,
        rank: int,
        size: int,
        late: Callable[[], Iterable[int]],
        use: Callable[[Tuple[int, ...]], None],
    ) -> None:
        self._core, self._rank, self._size = core, rank, size
        self._known, self._use = late, use
        self._late: Tuple[int, ...] = ()
        self._collectives = _SOONEST  # until the next word
        self._last = clock.now()  # when there was one
        self._word: Optional[_core.Work] = None
        core.set_milestone(core.submitted + self._collectives, self._say)

    @staticmethod
    def why_not(topology: Topology, deterministic: bool) -> str:
        """Return why others would not do a late rank's work, or would not gain by it; "": they would."""
        if deterministic:
            return "sums are to have the same bits, whoever is late"
        if topology.local_size < topology.size:
            return "not all ranks share memory"
        return "" if topology.size > FEWEST else f"it takes {FEWEST + 1} ranks or more, and there are {topology.size}"

    def _say(self) -> None:
        """Rank 0: begin to tell all who comes late, and after how many collectives it says so again."""
        now = clock.now()
        wanted = self._collectives * _SECONDS / max(1e-6, now - self._last)
        self._last = now
        word = np.zeros(1 + self._size, dtype=np.int64)
        if self._rank == 0:
            word[0] = min(max(wanted, _SOONEST), _LATEST, _GROWTH * self._collectives)
            word[[1 + rank for rank in self._known()]] = 1
        call = _core.Call(Collective.BROADCAST, word if self._rank == 0 else None, word, word, root=0)
        self._word = self._core.start(call, "ddl.rebalance")
        self._core.set_milestone(self._core.submitted + _SLACK, self._hear)

    def _hear(self) -> None:
        """Change plans if other ranks come late than before."""
        assert self._word is not None
        word, self._word = self._word.wait(), None
        late = tuple(rank for rank in range(self._size) if word[1 + rank])
        if self._size - len(late) < FEWEST:
            late = ()
        if late != self._late:
            self._late = late
            self._use(late)
            self._tell()
        self._collectives = int(word[0])
        self._core.set_milestone(self._core.submitted + self._collectives, self._say)

    def _tell(self) -> None:
        if self._rank != 0:  # once for the job is enough
            return
        if self._late:
            who = name_ranks(self._late)
            log.warning("rank 0: in large all-reduces the others do the work of %s, from now on", who)
        else:
            log.warning("rank 0: in large all-reduces all ranks do the same work again")
