"""How few ranks an elastic job may have, how long its store waits, and the phases of the job."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["ElasticLimits", "Phase"]


@dataclass(frozen=True)
class ElasticLimits:
    """How few ranks a job may have, and how long it waits."""

    min_size: int = 1
    patience: float = 600.0  #: seconds for a quorum, or for ranks if there are fewer than ``min_size``
    script_patience: float = 300.0  #: seconds that a script may take to come to a change: DDL_TIMEOUT
    answer_patience: float = 1.0  #: seconds for an agent's answer once there is to be a change


class Phase(enum.Enum):
    """What a job does now."""

    STEADY = "training"
    STOPPING = "stopping for a change"
    DECIDING = "deciding on the next generation"
    INSTALLING = "making the next generation"
    PAUSED = "waiting for more ranks"
    OVER = "over"
