"""Meshes that are not one device of every process: two halves; a process with two devices; some processes only."""

from __future__ import annotations

import sys
import time

import jax

jax.distributed.initialize()

import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

me, size = jax.process_index(), jax.process_count()
devices = jax.devices()
if sys.argv[1] in ("halves", "some"):
    devices = devices[: size // 2] if me < size // 2 else devices[size // 2 :]
if sys.argv[1] == "some" and me >= size // 2:
    time.sleep(5)
    sys.exit(0)
mesh = Mesh(np.array(devices), ("x",))
rows = PartitionSpec("x")
own = np.full((len(jax.local_devices()), 3), me, np.float32)
array = jax.make_array_from_process_local_data(NamedSharding(mesh, rows), own)
total = jax.jit(jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=rows, out_specs=rows))(array)
print("total", np.asarray(total.addressable_shards[0].data).tolist())
