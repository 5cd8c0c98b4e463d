"""One rank ends in the middle of a loop of collectives; the others wait for it."""

from __future__ import annotations

import os
import signal
import sys

import jax

jax.distributed.initialize()

import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from on_mesh import mesh, on, spread  # noqa: E402

line = mesh(1, jax.process_count())
verb = {
    "psum": lambda x: lax.psum(x, "b"),
    "ppermute": lambda x: lax.ppermute(x, "b", [(0, 1), (1, 0)]),
}[sys.argv[1]]
step = on(line, verb)
row = spread(line, np.ones(100_000, np.float32))
for number in range(10):
    if number == 5 and jax.process_index() == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    row = step(row).block_until_ready()
