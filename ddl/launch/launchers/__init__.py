"""How ddlrun starts its agents on other hosts: a file for each way. Each makes ``Start``s, local command lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

__all__ = ["Start"]


@dataclass(frozen=True)
class Start:
    """A process on this machine that starts the agents of ``hosts`` (numbers) and ends when they have ended.

    ``host``: the number for the invitation; None where the launcher's own variables tell each agent. The invitation
    goes through ``stdin``, or where there is one for all, through the environment, which the launcher carries.
    """

    hosts: Tuple[int, ...]
    command: Tuple[str, ...]
    host: Optional[int]
    stdin: bool
    label: str  #: before its own text
    environ: Dict[str, str] = field(default_factory=dict)
