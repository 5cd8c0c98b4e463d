"""``note_step``: an adapter says that a training step of this process has ended; the process's record shows it.

An adapter calls it once for each update of parameters, on each rank that makes it. Backward passes whose gradients are
only added up are no step, and neither is a step that is left out. Any thread may call it. It costs a fraction
of a microsecond. docs/record.md says where each adapter does so.
"""

from __future__ import annotations

from ddl._core import note_step

__all__ = ["note_step"]
