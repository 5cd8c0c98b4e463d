"""``fenced``: writes a file only if this process is still in the job.

A rank that was stopped for a minute, or cut off, does not know that the others have gone on without it. When it wakes,
it must not write its old weights over their new ones.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Iterator, Union

from ddl import api

__all__ = ["fenced"]


@contextlib.contextmanager
def fenced(path: Union[str, Path]) -> Iterator[Path]:
    """Yield a path to write to, beside ``path``; it takes the place of ``path`` at the end, whole, or not at all.

    Not collective, blocking: just before that it asks the job's store whether this process is still in the job. Raises
    ``LeftOut`` if it is not, and what the body raises; then ``path`` stays as it was. A process that is stopped after
    the store has answered, and before the file is renamed, is not stopped from that: a window of microseconds.

    >>> if ddl.rank() == 0:
    ...     with ddl.elastic.fenced("weights.npy") as draft:
    ...         np.save(draft.open("wb"), weights)
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield draft
        api.world().job.confirm()
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
