"""How fast the ranks of an ``ElasticJob`` go, so that none is at its end while the test still does something to it.

Nothing here counts on the test being quick: it may have to wait for a core for as long as ranks take for many steps.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict

from elastic import elastic_job
from elastic.elastic_job import ElasticJob

_PACE = 0.02  # seconds that a step takes longer while the test wants to do something
_LAST = 15  # before the end, each of so many steps takes longer than the one before
_LONGEST = 10.0  # seconds


def pause(left: int) -> None:
    """Wait after a step, ``left`` steps before the last one, until the test has done all that it wants to do.

    No longer than the others can bear, who may be in the next step: for a minute in all.
    """
    seconds = _PACE if left > _LAST else min(5 * _PACE * 1.5 ** (_LAST - left), _LONGEST)
    until = time.monotonic() + seconds
    while time.monotonic() < until and not elastic_job.may_end():
        time.sleep(_PACE)


def last_step() -> int:
    """Return the step after which all ranks may end, as ``elastic_job.last_step``, for steps that take any time."""
    while Path(os.environ["RANKS_FOLDER"], "hold").exists() and not elastic_job.may_end():
        time.sleep(0.002)
    return elastic_job.last_step()


def finish(job: ElasticJob) -> Dict[int, Any]:
    """Return ``job.finish()``. Ranks that ask for the ``last_step`` stop until it is known, so none is beyond it."""
    Path(job.folder, "hold").touch()
    return job.finish()
